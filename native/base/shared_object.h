// A shared library that is opened while the program runs, so that building needs none of it and machines without it
// lose nothing but what it does.
#ifndef SPARK_ESTIMATOR_BASE_SHARED_OBJECT_H_
#define SPARK_ESTIMATOR_BASE_SHARED_OBJECT_H_

#include <string>

#include "base/status.h"

namespace spark_estimator {

// Never closed: CUDA and NCCL leave threads and handlers behind that would outlive a dlclose.
class SharedObject {
 public:
  // `name` is a path, or a soname that the dynamic linker searches (a copy that the process has already loaded, such as
  // a framework's, is found first). Its symbols stay private to this handle.
  static Status Open(const std::string& name, SharedObject* object);

  // What is resolved is called by its real type: the caller gives a pointer of that.
  template <typename Function>
  Status Resolve(const char* symbol, Function** function) const {
    void* address = nullptr;
    SE_RETURN_IF_ERROR(Find(symbol, &address));
    *function = reinterpret_cast<Function*>(address);
    return Status::Ok();
  }

  // Where it was found, for messages and `doctor`.
  const std::string& path() const { return path_; }

 private:
  Status Find(const char* symbol, void** address) const;

  void* handle_ = nullptr;
  std::string path_;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_BASE_SHARED_OBJECT_H_
