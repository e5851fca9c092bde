#include "base/status.h"

#include <system_error>  // for the thread-safe text of an errno

namespace spark_estimator {

Status Status::System(const std::string& what, int error_number) {
  return Status(SE_SYSTEM_ERROR, what + ": " + std::generic_category().message(error_number) + " (errno " +
                                     std::to_string(error_number) + ")");
}

}  // namespace spark_estimator
