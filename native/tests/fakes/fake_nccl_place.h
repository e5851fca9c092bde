// The file that connects ranks of the fake NCCL, threads or processes: the unique id names it.
#ifndef SPARK_ESTIMATOR_TESTS_FAKES_FAKE_NCCL_PLACE_H_
#define SPARK_ESTIMATOR_TESTS_FAKES_FAKE_NCCL_PLACE_H_

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace fake_nccl {

constexpr int kMostRanks = 64;
constexpr size_t kPartBytes = size_t{32} << 10;
constexpr size_t kPage = 4096;

struct Meeting {
  std::atomic<int> size;  // the first rank's value
  std::atomic<uint64_t> ranks;
  std::atomic<int> joined;
  std::atomic<int> finalized;
  std::atomic<int> left;
  std::atomic<int> broken;  // a rank has found a contradiction
};

// From one rank to another, one part after the other.
struct Mailbox {
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
  alignas(64) uint8_t part[kPartBytes];
};

class Place {
 public:
  ~Place() {
    if (memory_ != nullptr) munmap(memory_, bytes_);
  }
  bool Open(const std::string& path, int size) {
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return false;
    path_ = path;
    size_ = static_cast<size_t>(size);
    bytes_ = kPage + size_ * size_ * sizeof(Mailbox);
    void* mapped = MAP_FAILED;
    if (ftruncate(fd, static_cast<off_t>(bytes_)) == 0) {
      mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    close(fd);
    if (mapped == MAP_FAILED) return false;
    memory_ = mapped;
    return true;
  }
  Meeting& meeting() const { return *static_cast<Meeting*>(memory_); }
  Mailbox& Between(int from, int to) const {
    auto* boxes = reinterpret_cast<Mailbox*>(static_cast<uint8_t*>(memory_) + kPage);
    return boxes[static_cast<size_t>(from) * size_ + static_cast<size_t>(to)];
  }
  // The file's name is not needed once all ranks have it open, or the last of those that arrived has left.
  void TakeNameAway() const { unlink(path_.c_str()); }
  void Leave() {
    if (meeting().left.fetch_add(1) + 1 == meeting().joined.load()) TakeNameAway();
  }

 private:
  std::string path_;
  size_t size_ = 0;
  size_t bytes_ = 0;
  void* memory_ = nullptr;
};

}  // namespace fake_nccl

#endif  // SPARK_ESTIMATOR_TESTS_FAKES_FAKE_NCCL_PLACE_H_
