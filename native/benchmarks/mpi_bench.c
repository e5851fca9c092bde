/* The engine's peer under MPI: the same ops, sizes, buffers and clock, over whichever MPI compiled this file.
 *
 * mpirun -np N mpi_bench SOCKET; see measured_rank.h for what is said on the socket. The only variant is "mpi".
 */
#define _GNU_SOURCE
#include <limits.h>
#include <mpi.h>
#include <signal.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "measured_rank.h"

static MPI_Datatype type_of(int dtype) {
  switch (dtype) {
    case BENCH_FLOAT32:
      return MPI_FLOAT;
    case BENCH_FLOAT64:
      return MPI_DOUBLE;
    case BENCH_INT8:
      return MPI_INT8_T;
    case BENCH_UINT8:
      return MPI_UINT8_T;
    case BENCH_INT32:
      return MPI_INT32_T;
    case BENCH_INT64:
      return MPI_INT64_T;
    default:
      return MPI_DATATYPE_NULL;
  }
}

static const char* said(int code) {
  static char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (code == MPI_SUCCESS) return NULL;
  MPI_Error_string(code, text, &length);
  return text;
}

static const char* refusal(void* self, const bench_form* form) {
  (void)self;
  if (strcmp(form->variant, "mpi") != 0) return "MPI has no such variant";
  if (type_of(form->dtype) == MPI_DATATYPE_NULL) return "MPI has no such element type";
  if ((size_t)form->bytes / bench_dtype_bytes[form->dtype] > INT_MAX) return "MPI counts elements in an int";
  return NULL;
}

static void* allocate(void* self, const bench_form* form, size_t bytes) {
  (void)self;
  (void)form;
  return aligned_alloc(64, bytes);
}

static void release(void* self, const bench_form* form, void* memory) {
  (void)self;
  (void)form;
  free(memory);
}

static const char* run(void* self, const bench_form* form, int slot) {
  const bench_library* library = (const bench_library*)self;
  const MPI_Datatype type = type_of(form->dtype);
  const int count = (int)form->count;
  const int share = count / library->size;
  void* input = bench_input(form, slot);
  void* output = bench_output(form, slot);
  switch (form->op) {
    case BENCH_ALLREDUCE:
      return said(MPI_Allreduce(MPI_IN_PLACE, input, count, type, MPI_SUM, MPI_COMM_WORLD));
    case BENCH_BROADCAST:
      return said(MPI_Bcast(input, count, type, 0, MPI_COMM_WORLD));
    case BENCH_ALLGATHER:
      return said(MPI_Allgather(input, count, type, output, count, type, MPI_COMM_WORLD));
    case BENCH_REDUCESCATTER:
      return said(MPI_Reduce_scatter_block(input, output, share, type, MPI_SUM, MPI_COMM_WORLD));
    case BENCH_ALLTOALL:
      return said(MPI_Alltoall(input, share, type, output, share, type, MPI_COMM_WORLD));
    default:
      return said(MPI_Barrier(MPI_COMM_WORLD));
  }
}

static const char* barrier(void* self) {
  (void)self;
  return said(MPI_Barrier(MPI_COMM_WORLD));
}

int main(int argc, char** argv) {
  bench_library library;
  int socket_fd;
  int failed;
  if (argc != 2) {
    fprintf(stderr, "usage: mpirun -np N %s SOCKET\n", argv[0]);
    return 2;
  }
#ifdef __linux__
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* a rank whose launcher was killed would spin for its peers for ever */
#endif
  MPI_Init(&argc, &argv);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  memset(&library, 0, sizeof library);
  library.self = &library;
  MPI_Comm_rank(MPI_COMM_WORLD, &library.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &library.size);
  library.refusal = refusal;
  library.allocate = allocate;
  library.release = release;
  library.run = run;
  library.barrier = barrier;
  socket_fd = bench_dial(argv[1]);
  failed = socket_fd < 0 || bench_serve(&library, socket_fd) != 0;
  if (failed) {
    fprintf(stderr, "mpi_bench: rank %d cannot talk to %s: %s\n", library.rank, argv[1], strerror(errno));
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}
