/* What is measured, for every library: one op at one size, the memory that it works on, and the numbers in it. */
#ifndef SPARK_ESTIMATOR_BENCHMARKS_FORM_H_
#define SPARK_ESTIMATOR_BENCHMARKS_FORM_H_

#include <stdint.h>
#include <string.h>

enum bench_op {
  BENCH_ALLREDUCE,
  BENCH_BROADCAST,
  BENCH_ALLGATHER,
  BENCH_REDUCESCATTER,
  BENCH_ALLTOALL,
  BENCH_BARRIER,
  BENCH_NUM_OPS
};

enum bench_dtype {
  BENCH_FLOAT32,
  BENCH_FLOAT64,
  BENCH_FLOAT16,
  BENCH_BFLOAT16,
  BENCH_INT8,
  BENCH_UINT8,
  BENCH_INT32,
  BENCH_INT64,
  BENCH_NUM_DTYPES
};

static const char* const bench_op_names[BENCH_NUM_OPS] = {"allreduce",     "broadcast", "allgather",
                                                          "reducescatter", "alltoall",  "barrier"};
static const char* const bench_dtype_names[BENCH_NUM_DTYPES] = {"float32", "float64", "float16", "bfloat16",
                                                                "int8",    "uint8",   "int32",   "int64"};
static const size_t bench_dtype_bytes[BENCH_NUM_DTYPES] = {4, 8, 2, 2, 1, 1, 4, 8};

/* One op at one size, and the memory that it works on. */
typedef struct bench_form {
  char variant[24]; /* which of the library's ways to do it; the library's own word */
  int op;           /* enum bench_op */
  int dtype;        /* enum bench_dtype */
  int batch;
  int64_t bytes;        /* as the command had it */
  size_t count;         /* elements of this rank's input */
  size_t output_count;  /* elements of its output */
  size_t input_stride;  /* bytes from one of the batch's inputs to the next */
  size_t output_stride; /* 0: in place */
  char* inputs;         /* [batch][input_stride] */
  char* outputs;        /* [batch][output_stride]; the same as inputs when in place */
  void* state;          /* the library's, made by prepare */
  int unchecked;        /* set by prepare: what it makes is no collective's result */
} bench_form;

static inline char* bench_input(const bench_form* form, int slot) {
  return form->inputs + (size_t)slot * form->input_stride;
}

static inline char* bench_output(const bench_form* form, int slot) {
  return form->output_stride == 0 ? bench_input(form, slot) : form->outputs + (size_t)slot * form->output_stride;
}

/* --- numbers: small whole ones, which every element type holds exactly, sums of up to 16 ranks included --- */

/* The bits of `value`, 0 <= value < 256, in the element type. */
static inline void bench_encode(int dtype, unsigned value, void* bits) {
  const float single = (float)value;
  const double twice = (double)value;
  const int32_t whole = (int32_t)value;
  const int64_t longer = (int64_t)value;
  const uint8_t byte = (uint8_t)value;
  uint16_t half = 0;
  uint32_t single_bits;
  switch (dtype) {
    case BENCH_FLOAT32:
      memcpy(bits, &single, sizeof single);
      return;
    case BENCH_FLOAT64:
      memcpy(bits, &twice, sizeof twice);
      return;
    case BENCH_INT32:
      memcpy(bits, &whole, sizeof whole);
      return;
    case BENCH_INT64:
      memcpy(bits, &longer, sizeof longer);
      return;
    case BENCH_FLOAT16:
      if (value != 0) {
        unsigned exponent = 0;
        while ((value >> (exponent + 1)) != 0) ++exponent;
        half = (uint16_t)(((exponent + 15) << 10) | ((value << (10 - exponent)) & 0x3ffu));
      }
      memcpy(bits, &half, sizeof half);
      return;
    case BENCH_BFLOAT16:
      memcpy(&single_bits, &single, sizeof single);
      half = (uint16_t)(single_bits >> 16);
      memcpy(bits, &half, sizeof half);
      return;
    default:
      memcpy(bits, &byte, sizeof byte);
  }
}

static inline int bench_reduces(int op) { return op == BENCH_ALLREDUCE || op == BENCH_REDUCESCATTER; }

/* Element `index` of the input of `rank`. Seven divides no power of two: a piece that lands elsewhere shows. */
static inline unsigned bench_given(int op, int rank, size_t index) {
  const unsigned place = (unsigned)(index % 7);
  return bench_reduces(op) ? place + (unsigned)(rank % 3) : place + 7u * (unsigned)(rank % 16);
}

/* Element `index` of what `rank` of `size` must get. */
static inline unsigned bench_expected(const bench_form* form, int rank, int size, size_t index) {
  const size_t share = form->count / (size_t)size;
  unsigned sum = 0;
  int other;
  switch (form->op) {
    case BENCH_ALLGATHER:
      return bench_given(form->op, (int)(index / form->count), index % form->count);
    case BENCH_ALLTOALL:
      return bench_given(form->op, (int)(index / share), (size_t)rank * share + index % share);
    case BENCH_BROADCAST:
      return bench_given(form->op, 0, index);
    case BENCH_REDUCESCATTER:
      index += (size_t)rank * share;
      break;
    default:
      break;
  }
  for (other = 0; other < size; ++other) sum += bench_given(form->op, other, index);
  return sum;
}

/* Writes every element of every input: a library must find memory as a training step leaves it, not as its own last op
 * did. */
static inline void bench_write_anew(const bench_form* form) {
  const size_t item = bench_dtype_bytes[form->dtype];
  const size_t bytes = form->count * item;
  char encoded[8];
  uint64_t word;
  size_t at;
  int slot;
  for (at = 0; at < sizeof encoded; at += item) bench_encode(form->dtype, 1, encoded + at);
  memcpy(&word, encoded, sizeof word);
  for (slot = 0; slot < form->batch; ++slot) {
    char* input = bench_input(form, slot);
    for (at = 0; at + sizeof word <= bytes; at += sizeof word) memcpy(input + at, &word, sizeof word);
    memcpy(input + at, &word, bytes - at);
  }
}

/* --- memory --- */

static inline size_t bench_padded(size_t bytes) { return (bytes + 63) / 64 * 64; }

static inline void bench_size(bench_form* form, int size) {
  const size_t item = bench_dtype_bytes[form->dtype];
  const size_t ranks = (size_t)size;
  form->count = form->op == BENCH_BARRIER ? 0 : (size_t)form->bytes / item;
  if (form->op != BENCH_BARRIER && form->count == 0) form->count = 1;
  if (form->op == BENCH_REDUCESCATTER || form->op == BENCH_ALLTOALL) { /* even shares */
    form->count = form->count < ranks ? ranks : form->count / ranks * ranks;
  }
  form->output_count = form->op == BENCH_ALLGATHER       ? form->count * ranks
                       : form->op == BENCH_REDUCESCATTER ? form->count / ranks
                                                         : form->count;
  form->input_stride = bench_padded(form->count * item);
  form->output_stride = form->op == BENCH_ALLREDUCE || form->op == BENCH_BROADCAST || form->op == BENCH_BARRIER
                            ? 0
                            : bench_padded(form->output_count * item);
}

#endif /* SPARK_ESTIMATOR_BENCHMARKS_FORM_H_ */
