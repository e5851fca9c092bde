#include "transport/pages.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

namespace spark_estimator {
namespace {

// On many kernels a signal undoes the whole of the call that it interrupts: the pieces take less time than a profiler's
// timer leaves, so that it does not undo all, for ever.
constexpr size_t kPiece = size_t{2} << 20;

}  // namespace

int PopulatePages(int fd, size_t start, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const size_t piece = std::min(kPiece, bytes - done);
    // It returns its error, EINTR among them.
    const int failed = posix_fallocate(fd, static_cast<off_t>(start + done), static_cast<off_t>(piece));
    if (failed == 0) {
      done += piece;
    } else if (failed != EINTR) {
      GiveBackPages(fd, start, bytes);
      return failed;
    }
  }
  return 0;
}

int GiveBackPages(int fd, size_t start, size_t bytes) {
  while (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(start),
                   static_cast<off_t>(bytes)) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

}  // namespace spark_estimator
