// The pages of a shared segment's file: allocated and freed, however often a signal interrupts.
#pragma once

#include <cstddef>

namespace spark_estimator {

// Zero, or the errno; then the range has no pages.
int PopulatePages(int fd, size_t start, size_t bytes);

// Zero, or the errno.
int GiveBackPages(int fd, size_t start, size_t bytes);

}  // namespace spark_estimator
