// Shows the engine and NCCL one GPU as a GPU of a separate machine in each rank, so that one GPU is enough to try NCCL.
//
// NCCL refuses two ranks that have the same GPU of the same machine. A rank that sets NCCL_HOSTID is, for NCCL, on a
// machine of that name. This library, preloaded, gives the engine another identity of the GPU in each such rank: it
// replaces the two functions that the engine asks, and only for the engine.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef void *(*Lookup)(void *, const char *);
typedef int (*Uuid)(unsigned char *, int);
typedef int (*BusId)(char *, int, int);

static Uuid real_uuid;
static BusId real_bus_id;

static Lookup real_lookup(void) {
  static Lookup lookup;
  static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
  for (unsigned int i = 0; lookup == NULL && i < sizeof versions / sizeof *versions; ++i) {
    lookup = (Lookup)dlvsym(RTLD_NEXT, "dlsym", versions[i]);
  }
  return lookup;
}

// The last character of the rank's machine, which differs between the ranks.
static char machine(void) {
  const char *name = getenv("NCCL_HOSTID");
  return name == NULL || *name == '\0' ? '\0' : name[strlen(name) - 1];
}

static int uuid_of_machine(unsigned char *uuid, int device) {
  const int result = real_uuid(uuid, device);
  uuid[15] ^= (unsigned char)machine();
  return result;
}

static int bus_id_of_machine(char *text, int capacity, int device) {
  const int result = real_bus_id(text, capacity, device);
  if (machine() != '\0') text[0] = machine();
  return result;
}

__attribute__((noinline)) static int is_engine(const void *address) {
  Dl_info library;
  return dladdr(address, &library) != 0 && library.dli_fname != NULL &&
         strstr(library.dli_fname, "libspark_estimator_engine") != NULL;
}

void *dlsym(void *handle, const char *symbol) {
  const Lookup lookup = real_lookup();
  // For others a jump, not a call (so -O2 is needed): the result for RTLD_NEXT depends on the return address.
  if (!is_engine(__builtin_return_address(0))) return lookup(handle, symbol);
  if (strcmp(symbol, "cuDeviceGetUuid_v2") == 0) {
    real_uuid = (Uuid)lookup(handle, symbol);
    return real_uuid == NULL ? NULL : (void *)uuid_of_machine;
  }
  if (strcmp(symbol, "cudaDeviceGetPCIBusId") == 0) {
    real_bus_id = (BusId)lookup(handle, symbol);
    return real_bus_id == NULL ? NULL : (void *)bus_id_of_machine;
  }
  return lookup(handle, symbol);
}
