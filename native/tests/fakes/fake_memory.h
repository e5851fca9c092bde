// Device memory without a device: large pieces are anonymous files, so that other processes can map them, small ones
// the heap's, where AddressSanitizer watches them.
#ifndef SPARK_ESTIMATOR_TESTS_FAKES_FAKE_MEMORY_H_
#define SPARK_ESTIMATOR_TESTS_FAKES_FAKE_MEMORY_H_

#include <array>
#include <cstddef>

namespace fake_memory {

// cudaIpcMemHandle_t.
struct Handle {
  std::array<char, 64> bytes;
};

// Filled with 0xCD; null when there is not so much.
void* Allocate(size_t bytes);
bool Owns(void* data);
// Ends the program when somebody has it mapped: CUDA does not say what happens then.
void Free(void* data);
// As memset; whole words at once, as a device's threads store them.
void Set(void* data, int value, size_t bytes);

// Of a large piece's beginning only.
bool Export(void* data, Handle* handle);
// In the process that owns it the memory itself, which CUDA would refuse: there ranks are threads. Null when it, or its
// process, is no more.
void* Open(const Handle& handle);
bool Close(void* data);

int LiveAllocations();
int LiveMappings();

}  // namespace fake_memory

#endif  // SPARK_ESTIMATOR_TESTS_FAKES_FAKE_MEMORY_H_
