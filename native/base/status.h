// The outcome of an operation: a code of the C ABI and the message.
#ifndef SPARK_ESTIMATOR_BASE_STATUS_H_
#define SPARK_ESTIMATOR_BASE_STATUS_H_

#include <memory>
#include <string>
#include <utility>

#include "spark_estimator/engine.h"

namespace spark_estimator {

// Copying one allocates nothing: an error can be passed on when memory is short.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(se_status code, std::string message)
      : code_(code), message_(message.empty() ? nullptr : std::make_shared<const std::string>(std::move(message))) {}

  static Status Ok() { return Status(); }
  // A failed system call: `what` names the attempt, the errno's text is appended.
  static Status System(const std::string& what, int error_number);
  // SE_NO_MEMORY. It exists already.
  static Status OutOfMemory() noexcept;

  bool ok() const { return code_ == SE_OK; }
  se_status code() const { return code_; }
  const std::string& message() const { return message_ ? *message_ : NoMessage(); }
  // The same code, with the failed step before the reason.
  Status Within(const std::string& step) const { return Status(code_, step + ": " + message()); }

 private:
  static const std::string& NoMessage() noexcept;

  se_status code_ = SE_OK;
  std::shared_ptr<const std::string> message_;  // null: empty
};

// errno of the thread that runs, for what may change threads (SideStack): compilers take errno for being at the same
// place all through a function.
int LastErrno();

#define SE_RETURN_IF_ERROR(expression)                                                   \
  do {                                                                                   \
    if (::spark_estimator::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_BASE_STATUS_H_
