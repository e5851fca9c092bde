/* What one rank does while it is measured, for every library: it takes commands from a controller, fills its
 * buffers, calls the library, and answers with what it has checked or timed. Plain C, because programs against MPI
 * include it.
 *
 * Commands and answers are lines on one connected stream socket:
 *
 *   -> rank RANK SIZE                                          sent once, by the rank
 *   <- check VARIANT OP DTYPE BYTES BATCH                      -> ok | unsupported WHY | wrong WHERE | failed WHY
 *   <- block VARIANT OP DTYPE BYTES BATCH SAMPLES              -> times T...  (nanoseconds an op, one for each sample)
 *   <- quit
 *
 * BYTES is the size of each rank's input. A sample is BATCH ops, one after another, each on separate buffers that
 * were rewritten before the sample, outside the clock, with a barrier between: BATCH > 1 keeps the clock's and the
 * barrier's unevenness out of the smallest ops. All ranks get the same commands in the same order.
 */
#ifndef SPARK_ESTIMATOR_BENCHMARKS_MEASURED_RANK_H_
#define SPARK_ESTIMATOR_BENCHMARKS_MEASURED_RANK_H_

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "form.h"

/* A library that can be measured. Functions that can fail return NULL, or a sentence that stays valid until the next
 * call. */
typedef struct bench_library {
  void* self;
  int rank;
  int size;
  /* Why the variant, op or dtype is not offered here; NULL when it is. No communication. */
  const char* (*refusal)(void* self, const bench_form* form);
  void* (*allocate)(void* self, const bench_form* form, size_t bytes); /* 64-byte aligned; NULL when there is none */
  void (*release)(void* self, const bench_form* form, void* memory);
  const char* (*prepare)(void* self, bench_form* form);             /* may be NULL: nothing to prepare */
  void (*unprepare)(void* self, bench_form* form);                  /* may be NULL */
  const char* (*run)(void* self, const bench_form* form, int slot); /* one op, on the slot-th of the batch's buffers */
  const char* (*barrier)(void* self);
} bench_library;

static inline double bench_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static inline void bench_close_form(const bench_library* library, bench_form* form) {
  if (form->variant[0] == '\0') return;
  if (library->unprepare != NULL) library->unprepare(library->self, form);
  if (form->inputs != NULL) library->release(library->self, form, form->inputs);
  if (form->output_stride != 0 && form->outputs != NULL) library->release(library->self, form, form->outputs);
  memset(form, 0, sizeof *form);
}

static inline const char* bench_open_form(const bench_library* library, bench_form* form) {
  const size_t batch = (size_t)form->batch;
  if (form->count > 0) {
    form->inputs = (char*)library->allocate(library->self, form, batch * form->input_stride);
    if (form->inputs == NULL) return "there is no memory for its input";
  }
  if (form->output_stride != 0) {
    form->outputs = (char*)library->allocate(library->self, form, batch * form->output_stride);
    if (form->outputs == NULL) return "there is no memory for its output";
    memset(form->outputs, 0, batch * form->output_stride);
  }
  return library->prepare == NULL ? NULL : library->prepare(library->self, form);
}

/* --- the two commands --- */

static inline const char* bench_check(const bench_library* library, const bench_form* form, char* where, size_t room) {
  const size_t item = bench_dtype_bytes[form->dtype];
  const char* error;
  size_t index;
  int slot;
  where[0] = '\0';
  for (slot = 0; slot < form->batch; ++slot) {
    char* input = bench_input(form, slot);
    for (index = 0; index < form->count; ++index) {
      bench_encode(form->dtype, bench_given(form->op, library->rank, index), input + index * item);
    }
  }
  if ((error = library->barrier(library->self)) != NULL) return error;
  for (slot = 0; slot < form->batch; ++slot) {
    if ((error = library->run(library->self, form, slot)) != NULL) return error;
  }
  for (slot = 0; slot < form->batch && where[0] == '\0' && !form->unchecked; ++slot) {
    const char* output = bench_output(form, slot);
    for (index = 0; index < form->output_count; ++index) {
      char bits[8];
      bench_encode(form->dtype, bench_expected(form, library->rank, library->size, index), bits);
      if (memcmp(output + index * item, bits, item) != 0) {
        snprintf(where, room, "element %zu of %zu on rank %d, op %d of %d", index, form->output_count, library->rank,
                 slot, form->batch);
        break;
      }
    }
  }
  return NULL;
}

/* `times`: [samples], seconds an op. The first samples of a block, which find others' data in the caches, do not count.
 */
static inline const char* bench_block(const bench_library* library, const bench_form* form, int samples,
                                      double* times) {
  const int uncounted = 2;
  const char* error;
  int sample;
  int slot;
  for (sample = -uncounted; sample < samples; ++sample) {
    double start;
    if (form->count > 0) bench_write_anew(form);
    if ((error = library->barrier(library->self)) != NULL) return error;
    start = bench_now();
    for (slot = 0; slot < form->batch; ++slot) {
      if ((error = library->run(library->self, form, slot)) != NULL) return error;
    }
    if (sample >= 0) times[sample] = (bench_now() - start) / form->batch;
  }
  return NULL;
}

/* --- the conversation --- */

static inline int bench_named(const char* name, const char* const* names, int number) {
  int index;
  for (index = 0; index < number; ++index) {
    if (strcmp(name, names[index]) == 0) return index;
  }
  return -1;
}

/* The form that a command asks for, ready to run: an open one where there is one. Opening a form of another op, size or
 * dtype closes all others, so that at any time a rank holds the memory of one measurement only. */
static inline bench_form* bench_find_form(const bench_library* library, bench_form* open, int room,
                                          const bench_form* wanted, const char** error) {
  bench_form* free_one = NULL;
  int index;
  for (index = 0; index < room; ++index) {
    const int alike = open[index].op == wanted->op && open[index].dtype == wanted->dtype &&
                      open[index].bytes == wanted->bytes && open[index].batch == wanted->batch;
    if (open[index].variant[0] != '\0' && !alike) bench_close_form(library, &open[index]);
    if (open[index].variant[0] == '\0') {
      free_one = &open[index];
    } else if (strcmp(open[index].variant, wanted->variant) == 0) {
      return &open[index];
    }
  }
  if (free_one == NULL) {
    *error = "too many variants are open";
    return NULL;
  }
  *free_one = *wanted;
  *error = bench_open_form(library, free_one);
  if (*error != NULL) {
    bench_close_form(library, free_one);
    return NULL;
  }
  return free_one;
}

/* One command. False when the conversation is over. */
static inline int bench_answer(const bench_library* library, bench_form* open, int room, const char* line, FILE* out) {
  char verb[16];
  char op[24];
  char dtype[24];
  char where[160];
  long long bytes = 0;
  int samples = 0;
  int fields;
  const char* error = NULL;
  bench_form wanted;
  bench_form* form;
  memset(&wanted, 0, sizeof wanted);
  fields =
      sscanf(line, "%15s %23s %23s %23s %lld %d %d", verb, wanted.variant, op, dtype, &bytes, &wanted.batch, &samples);
  if (fields >= 1 && strcmp(verb, "quit") == 0) return 0;
  if (fields >= 6) {
    wanted.op = bench_named(op, bench_op_names, BENCH_NUM_OPS);
    wanted.dtype = bench_named(dtype, bench_dtype_names, BENCH_NUM_DTYPES);
    wanted.bytes = bytes;
  }
  if (fields < 6 || wanted.op < 0 || wanted.dtype < 0 || bytes < 0 || wanted.batch < 1 || samples < 0) {
    fprintf(out, "failed this is no command: %s", line);
    return 1;
  }
  error = library->refusal(library->self, &wanted);
  if (error != NULL) {
    fprintf(out, "unsupported %s\n", error);
    return 1;
  }
  bench_size(&wanted, library->size);
  form = bench_find_form(library, open, room, &wanted, &error);
  if (error != NULL) {
    fprintf(out, "failed %s\n", error);
  } else if (strcmp(verb, "check") == 0) {
    error = bench_check(library, form, where, sizeof where);
    if (error != NULL) {
      fprintf(out, "failed %s\n", error);
    } else if (where[0] != '\0') {
      fprintf(out, "wrong %s\n", where);
    } else {
      fprintf(out, "ok\n");
    }
  } else if (strcmp(verb, "block") == 0 && samples > 0) {
    double* times = (double*)calloc((size_t)samples, sizeof(double));
    error = times == NULL ? "there is no memory for the times" : bench_block(library, form, samples, times);
    if (error != NULL) {
      fprintf(out, "failed %s\n", error);
    } else {
      int sample;
      fprintf(out, "times");
      for (sample = 0; sample < samples; ++sample) fprintf(out, " %.1f", times[sample] * 1e9);
      fprintf(out, "\n");
    }
    free(times);
  } else {
    fprintf(out, "failed this is no command: %s", line);
  }
  return 1;
}

/* Answers commands from `socket_fd`, which it takes over, until "quit" or the controller's end. Between commands the
 * rank sleeps, so that the ranks that are measured meanwhile have the machine to themselves. Returns 0, or -1 with
 * errno. */
static inline int bench_serve(const bench_library* library, int socket_fd) {
  enum {
    kRoom = 8
  };
  bench_form open[kRoom];
  char line[256];
  const int second = dup(socket_fd);
  FILE* in = fdopen(socket_fd, "r");
  FILE* out = second < 0 ? NULL : fdopen(second, "w");
  int index;
  if (in == NULL || out == NULL) return -1;
  memset(open, 0, sizeof open);
  fprintf(out, "rank %d %d\n", library->rank, library->size);
  fflush(out);
  while (fgets(line, sizeof line, in) != NULL) {
    if (!bench_answer(library, open, kRoom, line, out)) break;
    fflush(out);
  }
  for (index = 0; index < kRoom; ++index) bench_close_form(library, &open[index]);
  fclose(in);
  fclose(out);
  return 0;
}

/* Connects to the controller's Unix socket. Returns the descriptor, or -1 with errno. */
static inline int bench_dial(const char* path) {
  struct sockaddr_un address;
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  if (fd < 0) return -1;
  memset(&address, 0, sizeof address);
  address.sun_family = AF_UNIX;
  if (strlen(path) >= sizeof address.sun_path) {
    errno = ENAMETOOLONG;
    close(fd);
    return -1;
  }
  memcpy(address.sun_path, path, strlen(path));
  if (connect(fd, (const struct sockaddr*)&address, sizeof address) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

#endif /* SPARK_ESTIMATOR_BENCHMARKS_MEASURED_RANK_H_ */
