#include "base/status.h"

#include <cerrno>
#include <exception>
#include <new>
#include <system_error>  // also for the thread-safe text of an errno

#include "base/contain.h"

namespace spark_estimator {
namespace {

// Made when the library is loaded. Never destroyed: threads may still work while the process ends.
const Status* const kOutOfMemory = new Status(SE_NO_MEMORY, "an allocation of memory failed");
const std::string* const kNoMessage = new std::string;

}  // namespace

Status Status::System(const std::string& what, int error_number) {
  return Status(SE_SYSTEM_ERROR, what + ": " + std::generic_category().message(error_number) + " (errno " +
                                     std::to_string(error_number) + ")");
}

__attribute__((noinline)) int LastErrno() {
  const int number = errno;
  asm volatile("" ::: "memory");  // no caller may take it for a function that gives the same twice
  return number;
}

Status Status::OutOfMemory() noexcept { return *kOutOfMemory; }

const std::string& Status::NoMessage() noexcept { return *kNoMessage; }

Status StatusOfException(const Status& no_memory) noexcept {
  try {
    try {
      throw;
    } catch (const std::bad_alloc&) {
      return no_memory;
    } catch (const std::system_error& error) {
      return Status(SE_SYSTEM_ERROR, std::string("a system call failed: ") + error.what());
    } catch (const std::exception& error) {
      return Status(SE_INTERNAL, std::string("an exception in the engine: ") + error.what());
    } catch (...) {
      return Status(SE_INTERNAL, "an exception of an unknown type in the engine");
    }
  } catch (...) {
    return no_memory;  // making the message needed memory, too
  }
}

}  // namespace spark_estimator
