// What an engine is created with: this rank, its settings, and its connections to the peers.
#ifndef SPARK_ESTIMATOR_ENGINE_ENGINE_CONFIG_H_
#define SPARK_ESTIMATOR_ENGINE_ENGINE_CONFIG_H_

#include <cstdint>
#include <string>

#include "base/unique_fd.h"
#include "engine/gpu/gpu_meeting.h"
#include "transport/stream_socket.h"
#include "transport/striped_socket.h"

namespace spark_estimator {

struct PeerConfig {
  int rank = 0;
  int global_rank = 0;
  StreamSocket control;  // of every rank, with an overlay of its neighbours and perhaps others
  StripedSocket data;    // with an overlay perhaps none, until the first use
  UniqueFd segment;      // none when memory cannot be shared
  std::string name;
};

struct EngineConfig {
  int rank = 0;
  int size = 1;
  int global_rank = 0;
  int process_set = 0;
  bool overlay = false;  // the ranks are connected as in membership/overlay.h, not each two of them
  UniqueFd own_segment;
  int cores = 1;
  bool overlap = false;
  int affinity_core = -1;
  int spin_microseconds = -1;
  // Rank 0's values of these hold for all.
  int64_t fusion_threshold_bytes = 0;
  int64_t cache_capacity = 0;
  int hierarchical = -1;

  double start_timeout_seconds = 30;
  double stall_warning_seconds = 10;
  double stall_shutdown_seconds = 0;
  double heartbeat_seconds = 1;
  double silence_seconds = 6;
  std::string name;
  int32_t gpu_operations = 0;
  int32_t ranks_on_host = 0;
  GpuLibraries gpu_libraries;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_ENGINE_CONFIG_H_
