/* The C ABI of the spark_estimator collective engine: the only interface of the native library.
 *
 * An engine is one rank's membership of one group of ranks: of a job, or of a process set of it. It is created from
 * sockets that the caller has connected and authenticated and from shared segments that the caller has passed on: the
 * library never listens, resolves names, reads the environment or runs Python, and of cryptography it does what the
 * handshakes of its sockets have agreed on: the encryption of what they carry. All functions may be called from any
 * thread of the process that created the engine; calls do not block except where documented. Every function that can
 * fail returns an se_status; se_last_error() then returns the message, for the calling thread.
 *
 * Order of calls: se_segment_create (optional) -> se_engine_create -> { se_submit -> se_wait | se_poll ->
 * se_release }* -> se_engine_shutdown -> se_engine_destroy. A plan is a request that is made once and submitted
 * many times.
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
#define SE_ABI_VERSION 14

typedef enum se_status {
  SE_OK = 0,
  SE_IN_PROGRESS = 1,      /* se_wait: the time-out passed first; se_poll: not done yet */
  SE_INVALID_ARGUMENT = 2, /* the caller's own mistake; nothing was sent */
  SE_DUPLICATE_NAME = 3,   /* a request of that name is in progress on this rank; nothing was sent */
  SE_MISMATCH = 4,         /* the ranks disagree about a request; it failed on all of them, the ring is still usable */
  SE_PEER_LOST = 5,        /* a peer died, froze or was cut off; the engine is unusable from now on */
  SE_SHUT_DOWN = 6,        /* this rank, or a peer, has left the job in good order; unusable from now on */
  SE_TIMED_OUT = 7,        /* creation: a peer did not answer in time */
  SE_NO_MEMORY = 8,        /* an allocation failed (whose, or of what, in the message) */
  SE_SYSTEM_ERROR = 9,     /* a system call failed (name and errno in the message) */
  SE_INTERNAL = 10         /* a defect of the engine itself */
} se_status;

typedef enum se_op {
  SE_ALLREDUCE = 0,
  SE_ALLGATHER = 1,
  SE_BROADCAST = 2,
  SE_BARRIER = 3,
  SE_ALLTOALL = 4,
  SE_REDUCESCATTER = 5,
  SE_JOIN = 6 /* this rank has no more data: it takes part with zeros in the others' allreduces until all have joined */
} se_op;

/* Values are part of the wire format and of Horovod's public constants (Average 0 ... Product 5). */
typedef enum se_reduce_op {
  SE_AVERAGE = 0,
  SE_SUM = 1,
  SE_ADASUM = 2, /* allreduce of floating point on a power of two of ranks */
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
  SE_BOOL = 9, /* one byte, 0 or 1; sum and max are "or", product and min are "and"; average is refused */
  SE_UINT16 = 10
} se_dtype;

typedef enum se_place {
  SE_HOST = 0,
  SE_GPU = 1
} se_place;

/* Ciphers of encrypted connections. */
typedef enum se_cipher {
  SE_AES_128_GCM = 1,      /* where both processors have instructions for it */
  SE_CHACHA20_POLY1305 = 2 /* elsewhere */
} se_cipher;
#define SE_SECRET_BYTES 32

/* What the handshake of an encrypted connection has agreed on, seen from this end: a secret for each direction, from
 * which the keys of its records are derived. */
typedef struct se_encryption {
  int32_t cipher; /* se_cipher; 0: the connection is not encrypted */
  uint8_t send[SE_SECRET_BYTES];
  uint8_t receive[SE_SECRET_BYTES];
} se_encryption;

/* How GPU tensors are sent. Chosen at the first of them, by all ranks together; se_describe("gpu") reports it. */
typedef enum se_gpu_operations {
  SE_GPU_AUTO = 0,  /* what is fastest of the following */
  SE_GPU_NCCL = 1,  /* NCCL, each rank with a separate GPU; fails if that is not possible */
  SE_GPU_STAGED = 2 /* through pinned host memory and the host's algorithms, which works everywhere */
} se_gpu_operations;

/* A rank has at most this number of data connections to another one. */
#define SE_MAX_DATA 8

/* The engine's input on one other rank. Descriptors are owned by the engine from the moment se_engine_create is
 * called, also when it fails. With an overlay (see se_config) only its neighbours need a control_fd, others have -1,
 * and data_count may be 0: se_connect_peer adds the data connections later. */
typedef struct se_peer {
  int32_t rank;                  /* in this group */
  int32_t global_rank;           /* in the job; what messages call it */
  int32_t control_fd;            /* connected stream socket, authenticated: negotiation, liveness, goodbye */
  int32_t data_count;            /* data connections, up to SE_MAX_DATA: bulk bytes go through them in turns */
  int32_t data_fds[SE_MAX_DATA]; /* further connected stream sockets, in the same order on both ranks */
  int32_t segment_fd; /* the peer's segment, as made by its se_segment_create; -1 when memory cannot be shared */
  const char* name;   /* "host (pid 123)", for messages; copied */
  se_encryption control_encryption;           /* of control_fd; copied */
  se_encryption data_encryption[SE_MAX_DATA]; /* of data_fds; copied */
} se_peer;

typedef struct se_config {
  uint32_t struct_bytes; /* sizeof(se_config), checked */
  int32_t rank;          /* in this group: 0 <= rank < size */
  int32_t size;
  int32_t global_rank;    /* in the job; what messages call this rank */
  int32_t process_set;    /* for messages: 0 is the whole job */
  int32_t own_segment_fd; /* from se_segment_create, -1 for none; owned by the engine */
  int32_t cache_capacity; /* names, and forms of unnamed requests, whose agreement is remembered; 0: each op is
                             negotiated in full. 0..8192. Rank 0's value holds for all, as of fusion_threshold_bytes
                             and hierarchical */
  int32_t overlay;       /* 1, the same on all ranks: the ranks at distances of powers of two, in both directions on the
                            circle of all ranks, have control connections, and pass frames on to the others. 0: each
                            two ranks have them */
  int32_t overlap;       /* 1: the engine's thread starts at once on what is submitted, beside the caller's computing;
                            0: se_plan_submit with SE_DEFER leaves it to the next wait (cores are scarce) */
  int32_t cores;         /* that this process may use: its affinity, its control group's quota */
  int32_t hierarchical;  /* allreduce inside hosts first, then across: 1 always where it can be, 0 never, -1 by size */
  int32_t affinity_core; /* the core that the engine's thread is bound to, -1 for none */
  int32_t spin_microseconds;      /* longest busy waiting before sleeping in a shared-memory wait; -1: adaptive */
  int64_t fusion_threshold_bytes; /* small allreduces are fused up to this size; 0 turns fusion off */
  double start_timeout_seconds;   /* how long creation waits for the peers' hello */
  double stall_warning_seconds;  /* a request that some ranks have not submitted for this time is reported on stderr, as
                                    is an operation without progress for this time; 0: never */
  double stall_shutdown_seconds; /* ... and for this time fails on all ranks, the operation by SE_PEER_LOST; 0: never */
  double heartbeat_seconds;      /* between two heartbeats; 0: none are sent, and no rank is treated as frozen */
  double silence_seconds;        /* a peer that sent none for this time is lost */
  const char* name;              /* this rank's "host (pid 123)", for messages; copied */
  int32_t gpu_operations;        /* se_gpu_operations, the same on all ranks */
  int32_t ranks_on_host;         /* of the job, this one included; 0: not known. With more of them than GPUs that they
                                    see some have to share one */
  const char* cuda_library; /* path of libcudart.so; NULL or "": the copy that the process has loaded, else the one that
                               the linker finds. It is opened at the first GPU tensor, as is the next one; copied */
  const char* nccl_library; /* the same of libnccl.so */
  const char* crypto_library; /* absolute path of OpenSSL's libcrypto, 1.1.1 or later; opened when a connection is
                                 encrypted; copied */
} se_config;

/* One tensor of a request. 0-dimensional tensors have one element. */
typedef struct se_tensor {
  const void* input; /* may equal output (in place); may be NULL when it has no elements */
  void* output; /* allreduce, broadcast: as many elements as input. reducescatter: this rank's rows, see se_rows_of.
                   allgather, alltoall: NULL (see se_result), or memory of output_bytes that is used when it suffices */
  int64_t output_bytes; /* allgather, alltoall with an output; else 0 */
  int32_t dtype;        /* se_dtype */
  int32_t num_dims;
  const int64_t* dims; /* [num_dims], compared across ranks (allgather, alltoall: all but dims[0]); copied */
  float* residue; /* NULL: sent unchanged. Else, for the sum or average of float32 in host memory: may be sent as int8
                     between hosts, in blocks of 256 values with a scale each. The rounding error is stored here, and
                     added to the input of the next request with this residue; as many elements as input, at first
                     zeros. Small tensors, and those of one host, are sent unchanged and do not change it. All ranks
                     must pass one or none */
} se_tensor;

/* One collective. Memory must stay valid, and must not be written, until the handle is done. */
typedef struct se_request {
  uint32_t struct_bytes; /* sizeof(se_request), checked */
  const char* name;      /* matches the ranks' requests; UTF-8, 1..4095 bytes; copied. See `unnamed` */
  int32_t op;            /* se_op */
  int32_t reduce_op;     /* se_reduce_op; allreduce and (Average, Sum) reducescatter */
  int32_t root_rank;     /* broadcast: in this group */
  int32_t num_tensors;   /* barrier and join 0; broadcast and alltoall 1; others 1 or a group of n >= 1, agreed on and
                            done as one: all or nothing. Adasum scales each tensor of a group separately */
  const se_tensor* tensors; /* [num_tensors]; copied */
  const int64_t* splits;    /* alltoall: [size] rows for each rank, sum dims[0]; NULL: even shares */
  double prescale;  /* allreduce, reducescatter: multiplied before the reduction; integers are truncated toward zero */
  double postscale; /* ... and after it */
  int32_t unnamed;  /* 1: `name` is a kind, of which there should be few; it ends in ".noname". The requests of a kind
                       are matched by their order: the n-th of this rank with the n-th of every other. Any number may be
                       in flight. The engine calls them "<kind>.<n>", counting from 0, and again from 0 when all ranks
                       have joined; a request with its own name may not use such a name */
  int32_t place;    /* se_place: of all its tensors. Ranks with tensors in different places disagree */
  int32_t device;   /* SE_GPU: on which one, as this process counts them (cudaSetDevice). A rank uses one in a group */
  void* stream;     /* SE_GPU: a cudaStream_t of it (NULL is CUDA's default stream): what has been enqueued there so far
                       is done before the tensors are read or written. One that is being captured into a graph is
                       refused */
} se_request;

/* What an allgather or alltoall made of one tensor, or a join. */
typedef struct se_result {
  void* data;    /* all ranks' rows in rank order: the tensor's output if that sufficed, else memory owned by the handle
                    until se_take_result_data */
  int64_t bytes; /* size of data */
  const int64_t* rows; /* [size]: the first dimension that each rank gave; owned by the handle */
  int32_t last_joined; /* join: the rank (in this group) that joined last; else -1 */
  int32_t owned;       /* 1: data is the handle's memory; 0: it is the tensor's output */
  int32_t place; /* se_place: SE_GPU: data is on the request's GPU; for when it is complete see se_await_on_stream */
} se_result;

typedef struct se_engine se_engine;
typedef struct se_plan se_plan;

SE_API int32_t se_abi_version(void);
/* The sentence that belongs to the last status other than SE_OK or SE_IN_PROGRESS of the calling thread. */
SE_API const char* se_last_error(void);
/* Build facts for `doctor`: compiler, instruction sets in use. Static storage. */
SE_API const char* se_build_info(void);
/* Opens the CUDA runtime at `path` ("": the copy that the process has loaded, else the one that the linker finds),
 * reads its and its driver's versions (12090 is 12.9) and how many devices this process sees, and closes it. A
 * missing value is 0, and the status is not SE_OK; then se_last_error has the remedy. */
SE_API int32_t se_cuda_probe(const char* path, int32_t* runtime_version, int32_t* driver_version, int32_t* devices);
/* The same of NCCL (22703 is 2.27.3). It needs no driver and no device. */
SE_API int32_t se_nccl_probe(const char* path, int32_t* version);
/* Whether one CUDA device reaches the memory of another directly: *can is 1 or 0. `path` as above. */
SE_API int32_t se_cuda_peer_access(const char* path, int32_t device, int32_t peer, int32_t* can);
SE_API int64_t se_dtype_bytes(int32_t dtype); /* 0 for an unknown code */
/* Rows of a first dimension of `rows` that `rank` of `size` gets from a reducescatter, or gives to an even alltoall:
 * lower ranks get one more. */
SE_API int64_t se_rows_of(int64_t rows, int32_t rank, int32_t size);

/* The ranks that `rank` of `size` is connected with in an overlay, see se_config; ascending. Gives their number. */
#define SE_MOST_NEIGHBOURS 62
SE_API int32_t se_neighbours(int32_t rank, int32_t size, int32_t* ranks);

/* Makes this rank's shared segment for `local_size` ranks of one host: anonymous (memfd), allocated as far as it is
 * used, sealed against resizing. The descriptor is to be passed to every peer on the same host. SE_SYSTEM_ERROR when
 * memory cannot be allocated. */
SE_API int32_t se_segment_create(int32_t local_size, int32_t* fd);

/* Joins the group: checks with every peer that both are of the same ABI and size and which ranks see each other's
 * segments, then starts the engine thread. Blocks up to start_timeout_seconds. `peers` holds size - 1 entries, any
 * order. */
SE_API int32_t se_engine_create(const se_config* config, const se_peer* peers, se_engine** engine);

/* Hands over a request. Does not block. On SE_OK, *handle is a positive number. */
SE_API int32_t se_submit(se_engine* engine, const se_request* request, int64_t* handle);
/* Submits and waits, in the caller's thread if that is fastest: SE_OK when done (then *handle is 0 and there is
 * nothing to release, unless the op has a result), SE_IN_PROGRESS when timeout_seconds passed first (continue with
 * se_wait), else the request's error. With SE_OK the request's stream waits for it, as after se_await_on_stream. */
SE_API int32_t se_run(se_engine* engine, const se_request* request, double timeout_seconds, int64_t* handle);
/* SE_OK when it has succeeded, SE_IN_PROGRESS when not done, else its error. */
SE_API int32_t se_poll(se_engine* engine, int64_t handle);
/* As se_poll, but blocks up to timeout_seconds. Callers that must react to signals call it repeatedly. A time-out
 * ends a wait also while the request's operation runs, within some 50 ms: the engine continues it, its memory stays
 * in use, and another wait may follow. A request of GPU tensors that are sent through host memory is waited for to
 * its end. */
SE_API int32_t se_wait(se_engine* engine, int64_t handle, double timeout_seconds);
/* The result of a request that is done, for one of its tensors; valid until se_release. */
SE_API int32_t se_get_result(se_engine* engine, int64_t handle, int32_t tensor, se_result* result);
/* Moves the memory of a result out of the handle; to be freed by se_free. */
SE_API int32_t se_take_result_data(se_engine* engine, int64_t handle, int32_t tensor, void** data);
SE_API void se_free(void* data);
/* GPU requests are done (se_poll, se_wait) as soon as all of their work is enqueued on the GPU. These two report
 * when results may be read, for a handle that has succeeded, and before it is released; they do not block, except
 * where a result is copied to memory that CUDA does not know. */
/* What is enqueued on `stream` from now on finds the request's outputs written. */
SE_API int32_t se_await_on_stream(se_engine* engine, int64_t handle, void* stream);
/* The same, and then copies the result of an allgather or alltoall that the handle owns to `output`, on the stream. */
SE_API int32_t se_copy_result(se_engine* engine, int64_t handle, int32_t tensor, void* output, void* stream);
/* Forgets a handle. One that is not done is only detached: its memory stays in use until the engine has finished. */
SE_API void se_release(se_engine* engine, int64_t handle);

/* A request that is checked and named once, with memory passed at each submission: a bucket plan, a metric, a flag.
 * One submission of a plan may be in flight. Destroy it before the engine, and not in flight. The request's
 * addresses are ignored, except its residues, which are those of every submission; its output_bytes are the room at
 * the outputs of every submission. */
SE_API int32_t se_plan_create(se_engine* engine, const se_request* request, se_plan** plan);
#define SE_DEFER 1 /* no rank needs the result before the next se_wait of this rank; see se_config.overlap */
/* `inputs`, `outputs`: [num_tensors] addresses in the order of the request's tensors; copied. `stream` replaces the
 * request's if it is of SE_GPU. */
SE_API int32_t se_plan_submit(se_plan* plan, const void* const* inputs, void* const* outputs, void* stream,
                              int32_t flags, int64_t* handle);
/* As se_run. */
SE_API int32_t se_plan_run(se_plan* plan, const void* const* inputs, void* const* outputs, void* stream,
                           double timeout_seconds, int64_t* handle);
SE_API void se_plan_destroy(se_plan* plan);

/* Memory of this rank that all ranks of its host see: an allreduce whose tensors are all in such memory on all
 * ranks copies nothing. Page-aligned and zeroed. SE_NO_MEMORY when the engine has no segment or memory runs out; to
 * be freed before the engine is destroyed. */
SE_API int32_t se_shared_allocate(se_engine* engine, int64_t bytes, void** data);
SE_API void se_shared_free(se_engine* engine, void* data);

/* Counters since creation; unknown names give -1. se_counter_names() lists them, separated by spaces. */
SE_API int64_t se_counter(se_engine* engine, const char* name);
SE_API const char* se_counter_names(void);

/* The engine's state as text: "flight_recorder" (the last 1,000 ops, one a line, newest last), "algorithms" (the
 * one for each size), "gpu" (how GPU tensors are sent, and why; empty before the first) or "running" (the operation
 * that runs and the ranks that it waits for; empty when it waits for none). Copies up to `capacity` bytes with a
 * closing NUL; *bytes gets the length that the whole text has. */
SE_API int32_t se_describe(se_engine* engine, const char* what, char* text, int64_t capacity, int64_t* bytes);

/* Starts writing a Chrome trace of this rank's ops to `path` (created or overwritten); SE_INVALID_ARGUMENT when one is
 * being written. Stopping twice is fine. */
SE_API int32_t se_timeline_start(se_engine* engine, const char* path, int32_t mark_cycles);
SE_API int32_t se_timeline_stop(se_engine* engine);

/* Waits for the engine's question to its process; for a thread that does nothing else. SE_OK with a question,
 * SE_IN_PROGRESS when the time passed, SE_SHUT_DOWN when there will be no more. The only question: what is this
 * process doing (its stacks), because others wait for it? */
SE_API int32_t se_await_question(se_engine* engine, double timeout_seconds, int64_t* question);
SE_API int32_t se_answer(se_engine* engine, int64_t question, const char* text);

/* Waits for a rank with which the engine needs data connections that it does not have; only with an overlay, and only
 * for higher ranks than this one: the higher of the two accepts. For a thread that does nothing else. SE_OK with a rank
 * that is then to be connected or refused, SE_IN_PROGRESS when the time passed, SE_SHUT_DOWN when there will be no
 * more. */
SE_API int32_t se_await_wanted_peer(se_engine* engine, double timeout_seconds, int32_t* rank);
/* Adds the data connections with a rank, wanted or accepted. Of `peer` only rank, data_count, data_fds and
 * data_encryption are read; the descriptors are owned by the engine from the call on, also when it fails. */
SE_API int32_t se_connect_peer(se_engine* engine, const se_peer* peer);
/* There can be no data connection with a rank: the operation that needs it fails, with this reason, and the group with
 * it. */
SE_API int32_t se_refuse_peer(se_engine* engine, int32_t rank, const char* reason);

/* The order in which rings and chains pass through the ranks from now on: `ranks` [size], each rank once, the next one
 * after the last being the first. All ranks call it with the same order between the same two operations, while they
 * have no request in progress (else SE_INVALID_ARGUMENT). At first it is that of the ranks. `halves_in_ring`: 1 if long
 * allreduces of float16 and bfloat16 go round the ring as well, with partial sums in float32; 0, as at first, if each
 * rank sends each other one its share. Sums of floating-point values depend on both. */
SE_API int32_t se_order_ring(se_engine* engine, const int32_t* ranks, int32_t halves_in_ring);

/* Leaves the job: notifies the peers, fails pending requests with SE_SHUT_DOWN, ends the thread. Blocks for at most
 * about a second, so that peers can read what was sent; before that until this rank's GPU has finished its
 * operations, which other ranks may still need (4 x start_timeout_seconds at most); and after it up to two seconds
 * for the other ranks of a group of GPUs to leave, too. Idempotent. */
SE_API int32_t se_engine_shutdown(se_engine* engine);
/* Frees the engine (after a shutdown, which it does if need be). Handles die with it. */
SE_API void se_engine_destroy(se_engine* engine);
/* In a forked child: closes the descriptors without a word to the peers and frees nothing. The engine cannot be used in
 * that process. */
SE_API void se_engine_abandon_after_fork(se_engine* engine);

/* A tensor of a node of TensorFlow's. */
typedef struct se_tensorflow_tensor {
  const void* data; /* may be NULL when it has no elements */
  int64_t bytes;
  int32_t dtype; /* TensorFlow's code (TF_DataType) */
  int32_t num_dims;
  const int64_t* dims; /* [num_dims] */
} se_tensorflow_tensor;

/* Makes an output of a node, once its shape is known: *data is where its elements are to be put. Not SE_OK when
 * TensorFlow has no memory. `context`: that of the se_tensorflow_call. */
typedef int32_t (*se_tensorflow_allocate)(void* context, int32_t output, int32_t num_dims, const int64_t* dims,
                                          void** data);

/* One run of a node, by its attributes; valid until the function that gets it returns. */
typedef struct se_tensorflow_call {
  uint32_t struct_bytes; /* sizeof(se_tensorflow_call) */
  const char* op;        /* "SparkEstimatorAllreduce" and its like: native/tensorflow/nodes.cc lists them */
  const char* request;   /* matches the ranks' requests */
  const char* text;      /* of a query, or of an agreement; of an allreduce, the process's keys for the residues of its
                            tensors, "" without them; else "" */
  int32_t reduce_op;     /* se_reduce_op */
  int32_t root_rank;     /* in the job */
  int32_t process_set;   /* its id where the graph was built */
  const char* process_set_ranks; /* its ranks there, with commas between them; "" for the set of all ranks */
  double prescale;
  double postscale;
  int32_t num_inputs;
  int32_t num_outputs;
  const se_tensorflow_tensor* inputs; /* [num_inputs] */
  void* const* outputs;               /* [num_outputs]; NULL where the output has to be allocated, or is empty */
  void* context;                      /* for `allocate` */
  se_tensorflow_allocate allocate;
  int32_t completed; /* out: 1 once all outputs are there; with SE_OK and 0 the run fails */
} se_tensorflow_call;

/* Does the work of a node: SE_OK, SE_INVALID_ARGUMENT or another status with a text of at most `capacity` bytes in
 * `message`. A callback of ctypes returns 0 (SE_OK) when an exception leaves it, hence `completed`. Called in a
 * thread of the engine's that may wait; several calls may run at once. */
typedef int32_t (*se_tensorflow_work)(se_tensorflow_call* call, char* message, int64_t capacity);

/* Registers the ops of collectives in TensorFlow's graphs, and their kernels, which call `work`. `path` is that of
 * the process's libtensorflow_framework.so, of a release whose asynchronous kernels get a std::function<void()> of
 * libstdc++ as their callback. SE_SYSTEM_ERROR when it lacks a function of its C API. Permanent: a second call
 * replaces `work` only. */
SE_API int32_t se_tensorflow_register(const char* path, se_tensorflow_work work);

/* The record layer of encrypted connections, for connections other than an engine's. One sealer or opener is one end of
 * one direction; not thread-safe. `library` as se_config.crypto_library. */
typedef struct se_sealer se_sealer;
typedef struct se_opener se_opener;
/* A record holds 1 to SE_RECORD_BYTES bytes of data and is SE_RECORD_OVERHEAD bytes longer. */
#define SE_RECORD_BYTES 65536
#define SE_RECORD_OVERHEAD 20
SE_API int32_t se_sealer_create(const char* library, int32_t cipher, const uint8_t* secret, se_sealer** sealer);
/* Makes the next records of `data`, as many as it needs, in `records`, which has room for them. */
SE_API int32_t se_seal(se_sealer* sealer, const void* data, int64_t bytes, void* records);
SE_API void se_sealer_destroy(se_sealer* sealer);
SE_API int32_t se_opener_create(const char* library, int32_t cipher, const uint8_t* secret, se_opener** opener);
/* Decrypts the whole records at the beginning of `records` into `data`, which has room for `bytes` bytes. *taken is
 * their length, *opened that of their data. SE_PEER_LOST when one fails its authentication: the connection must end. */
SE_API int32_t se_open(se_opener* opener, const void* records, int64_t bytes, void* data, int64_t* taken,
                       int64_t* opened);
SE_API void se_opener_destroy(se_opener* opener);

/* Binds this process to its parent: when the parent dies, the whole process group of this process is killed
 * (SIGKILL), grandchildren included. The caller must lead its own process group. `parent_pid` is the expected
 * parent; SE_SHUT_DOWN if it has already ended. Linux only; elsewhere a no-op. */
SE_API int32_t se_die_with_parent(int32_t parent_pid);

/* Has `se_exit` end the process with this status, as _exit(2) does: C's streams are flushed, and no static object is
 * destroyed. `se_exit` is for Py_AtExit(), as the last that a process does: destroying the tables of a framework that
 * were filled in another process copies them first. */
SE_API void se_set_exit_status(int32_t status);
SE_API void se_exit(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SPARK_ESTIMATOR_ENGINE_H_ */
