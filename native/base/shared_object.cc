#include "base/shared_object.h"

#include <dlfcn.h>
#include <link.h>  // for link_map

#include <utility>

namespace spark_estimator {
namespace {

// The linker's own words for the last failure; it has them once.
std::string LinkerError() {
  const char* text = dlerror();
  return text != nullptr ? text : "the dynamic linker gives no reason";
}

}  // namespace

Status SharedObject::Open(const std::string& name, SharedObject* object) {
  // A name without a folder would be looked for in LD_LIBRARY_PATH, which others may have set.
  if (name.empty()) return Status(SE_SYSTEM_ERROR, "it is neither loaded nor in a wheel, and no path was given");
  SharedObject opened;
  opened.handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened.handle_ == nullptr) return Status(SE_SYSTEM_ERROR, "cannot open " + name + ": " + LinkerError());
  opened.path_ = name;
  link_map* map = nullptr;
  if (dlinfo(opened.handle_, RTLD_DI_LINKMAP, &map) == 0 && map->l_name != nullptr && *map->l_name != '\0') {
    opened.path_ = map->l_name;
  }
  *object = std::move(opened);
  return Status::Ok();
}

Status SharedObject::Find(const char* symbol, void** address) const {
  if (handle_ == nullptr) return Status(SE_INTERNAL, std::string("no library is open to look for ") + symbol);
  dlerror();
  *address = dlsym(handle_, symbol);
  if (*address != nullptr) return Status::Ok();
  return Status(SE_SYSTEM_ERROR, path_ + " has no function " + symbol + ": " + LinkerError());
}

}  // namespace spark_estimator
