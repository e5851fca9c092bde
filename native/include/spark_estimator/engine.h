/* The C ABI of the spark_estimator collective engine: the only door into the native library.
 *
 * An engine is one rank's membership of one job. It is created from sockets that somebody else has connected and
 * authenticated and from shared segments that somebody else has passed on: the library never listens, resolves names,
 * does cryptography, reads the environment or runs Python. All functions may be called from any thread of the process
 * that created the engine; calls do not block except where it is said. Every function that can fail returns an
 * se_status; se_last_error() then gives the sentence, for the calling thread.
 *
 * Order of calls: se_segment_create (optional) -> se_engine_create -> { se_submit -> se_wait | se_poll -> se_release }*
 * -> se_engine_shutdown -> se_engine_destroy.
 */
#ifndef SPARK_ESTIMATOR_ENGINE_H_
#define SPARK_ESTIMATOR_ENGINE_H_

#include <stdint.h>

#if defined(_WIN32)
#error "spark_estimator supports POSIX systems only"
#endif
#define SE_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* Raised by one whenever a struct or the meaning of a function changes; the Python side refuses another number. */
#define SE_ABI_VERSION 1

typedef enum se_status {
  SE_OK = 0,
  SE_IN_PROGRESS = 1,      /* se_wait: the time-out passed first; se_poll: not done yet */
  SE_INVALID_ARGUMENT = 2, /* the caller's own mistake; nothing was sent */
  SE_DUPLICATE_NAME = 3,   /* a request of that name is in flight on this rank; nothing was sent */
  SE_MISMATCH = 4,         /* the ranks disagree about a request; it failed on all of them, the ring is still usable */
  SE_PEER_LOST = 5,        /* a peer died or its link broke; the engine is unusable from now on */
  SE_SHUT_DOWN = 6,        /* this rank, or a peer, has left the job in good order; unusable from now on */
  SE_TIMED_OUT = 7,        /* creation: a peer did not answer in time */
  SE_NO_MEMORY = 8,        /* an allocation failed (bytes in the message) */
  SE_SYSTEM_ERROR = 9,     /* a system call failed (name and errno in the message) */
  SE_INTERNAL = 10         /* a defect of the engine itself */
} se_status;

typedef enum se_op {
  SE_ALLREDUCE = 0,
  SE_ALLGATHER = 1,
  SE_BROADCAST = 2,
  SE_BARRIER = 3
} se_op;

/* Values are part of the wire format and of Horovod's public constants (Average 0 ... Product 5). */
typedef enum se_reduce_op {
  SE_AVERAGE = 0,
  SE_SUM = 1,
  SE_MIN = 3,
  SE_MAX = 4,
  SE_PRODUCT = 5
} se_reduce_op;

typedef enum se_dtype {
  SE_UINT8 = 0,
  SE_INT8 = 1,
  SE_INT16 = 2,
  SE_INT32 = 3,
  SE_INT64 = 4,
  SE_FLOAT16 = 5,
  SE_BFLOAT16 = 6,
  SE_FLOAT32 = 7,
  SE_FLOAT64 = 8,
  SE_BOOL = 9 /* one byte, 0 or 1; sum and max are "or", product and min are "and"; average is refused */
} se_dtype;

/* What the engine is told of one other rank. Descriptors are owned by the engine from the moment se_engine_create is
 * called, also when it fails. */
typedef struct se_peer {
  int32_t rank;
  int32_t control_fd; /* connected stream socket, authenticated: negotiation, liveness, goodbye */
  int32_t data_fd;    /* second connected stream socket: bulk bytes */
  int32_t segment_fd; /* the peer's segment, as made by its se_segment_create; -1 when memory cannot be shared */
  const char* name;   /* "host (pid 123)", for messages; copied */
} se_peer;

typedef struct se_config {
  uint32_t struct_bytes; /* sizeof(se_config), checked */
  int32_t rank;
  int32_t size;
  int32_t own_segment_fd;         /* from se_segment_create, -1 for none; owned by the engine */
  int64_t fusion_threshold_bytes; /* small allreduces are run as one up to so many bytes; 0 turns fusion off.
                                     Rank 0's value holds for all */
  double start_timeout_seconds;   /* how long creation waits for the peers' hello */
  double
      stall_warning_seconds; /* a request that some ranks have not submitted for so long is told on stderr; 0: never */
  double stall_shutdown_seconds; /* ... and for so long fails on all ranks; 0: never */
  int32_t spin_microseconds;     /* busy waiting before sleeping in a shared-memory wait; 0 when cores are scarce */
  const char* name;              /* this rank's "host (pid 123)", for messages; copied */
} se_config;

typedef struct se_buffer {
  const void* input; /* may equal output (in place); may be NULL when count is 0 */
  void* output;      /* allreduce, broadcast: count elements. NULL for allgather (see se_result) and barrier */
  int64_t count;     /* elements */
} se_buffer;

/* One named collective. Buffers must stay valid, and must not be written, until the handle is done. */
typedef struct se_request {
  uint32_t struct_bytes; /* sizeof(se_request), checked */
  const char* name;      /* how the ranks' requests find each other; UTF-8, 1..4095 bytes; copied */
  int32_t op;            /* se_op */
  int32_t dtype;         /* se_dtype */
  int32_t reduce_op;     /* se_reduce_op; allreduce only */
  int32_t root_rank;     /* broadcast only */
  int32_t process_set;   /* 0: all ranks */
  int32_t num_buffers;   /* 1; allreduce also a list of n >= 1 (a bucket), reduced as if joined end to end; barrier 0 */
  const se_buffer* buffers; /* [num_buffers]; copied */
  int32_t num_dims;         /* one buffer: its shape; several: num_buffers counts, one a buffer */
  const int64_t* dims;      /* [num_dims], compared across ranks (allgather: all but dims[0]); copied */
  double prescale;          /* allreduce: multiplied before the reduction; integers are truncated toward zero */
  double postscale;         /* ... and after it */
} se_request;

typedef struct se_result {
  void* data;          /* allgather: all ranks' rows in rank order; owned by the handle until se_take_result_data */
  int64_t bytes;       /* size of data */
  const int64_t* rows; /* [size], allgather: first dimension that each rank gave; owned by the handle */
} se_result;

typedef struct se_engine se_engine;

SE_API int32_t se_abi_version(void);
/* The sentence that belongs to the last status other than SE_OK or SE_IN_PROGRESS of the calling thread. */
SE_API const char* se_last_error(void);
/* Build facts for `doctor`: compiler, instruction sets in use. Static storage. */
SE_API const char* se_build_info(void);
SE_API int64_t se_dtype_bytes(int32_t dtype); /* 0 for an unknown code */

/* Makes this rank's shared segment for a job of `size` ranks: anonymous (memfd), fully allocated, sealed against
 * resizing. The descriptor is to be passed to every peer on the same host. SE_SYSTEM_ERROR when memory cannot be had.
 */
SE_API int32_t se_segment_create(int32_t size, int32_t* fd);

/* Joins the job: checks with every peer that both are of the same ABI, size and configuration and that segments can be
 * used, then starts the engine thread. Blocks up to start_timeout_seconds. `peers` holds size - 1 entries, any order.
 */
SE_API int32_t se_engine_create(const se_config* config, const se_peer* peers, se_engine** engine);

/* Hands over a request. Does not block. On SE_OK, *handle is a positive number. */
SE_API int32_t se_submit(se_engine* engine, const se_request* request, int64_t* handle);
/* SE_OK when done well, SE_IN_PROGRESS when not done, else what became of it. */
SE_API int32_t se_poll(se_engine* engine, int64_t handle);
/* As se_poll, but blocks up to timeout_seconds. Callers that must react to signals call it again and again. */
SE_API int32_t se_wait(se_engine* engine, int64_t handle, double timeout_seconds);
/* The result of a request that is done; valid until se_release. */
SE_API int32_t se_get_result(se_engine* engine, int64_t handle, se_result* result);
/* Moves the result's memory out of the handle; to be freed by se_free. */
SE_API int32_t se_take_result_data(se_engine* engine, int64_t handle, void** data);
SE_API void se_free(void* data);
/* Forgets a handle. One that is not done is only detached: its buffers stay in use until the engine is through. */
SE_API void se_release(se_engine* engine, int64_t handle);

/* Counters since creation, for tests and benchmarks; unknown names give -1. Names: "requests", "responses",
 * "fused_requests", "shared_bytes", "stream_bytes", "control_bytes_sent", "wakeups", "shared_memory" (1 when segments
 * are in use). */
SE_API int64_t se_counter(se_engine* engine, const char* name);

/* Leaves the job: tells the peers, fails what is pending with SE_SHUT_DOWN, ends the thread. Blocks for at most about a
 * second, so that peers can read what was sent. Idempotent. */
SE_API int32_t se_engine_shutdown(se_engine* engine);
/* Frees the engine (after a shutdown, which it does if need be). Handles die with it. */
SE_API void se_engine_destroy(se_engine* engine);
/* In a forked child: closes the descriptors without a word to the peers and frees nothing. The engine cannot be used in
 * that process. */
SE_API void se_engine_abandon_after_fork(se_engine* engine);

/* Binds this process to its parent: when the parent dies, the whole process group of this process is killed (SIGKILL),
 * grandchildren included. The caller must lead its own process group.
 * `parent_pid` is the parent expected; SE_SHUT_DOWN when it is gone already. Linux only; elsewhere a no-op. */
SE_API int32_t se_die_with_parent(int32_t parent_pid);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SPARK_ESTIMATOR_ENGINE_H_ */
