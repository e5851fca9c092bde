// The few assertions that the native tests need; a failed one prints its position and values, and ends the program.
#ifndef SPARK_ESTIMATOR_TESTS_CHECK_H_
#define SPARK_ESTIMATOR_TESTS_CHECK_H_

#include <cstdlib>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace spark_estimator::testing {

[[noreturn]] inline void Fail(const char* file, int line, const std::string& text) {
  std::ostringstream out;
  out << file << ":" << line << ": " << text << "\n";
  std::cerr << out.str() << std::flush;
  std::_Exit(1);
}

template <typename A, typename B>
void CheckEqual(const A& a, const B& b, const char* text, const char* file, int line) {
  if (a == b) return;
  std::ostringstream out;
  out << text << ": " << a << " is not " << b;
  Fail(file, line, out.str());
}

inline void CheckContains(const std::string& text, const std::string& part, const char* file, int line) {
  if (text.find(part) == std::string::npos) Fail(file, line, "\"" + text + "\" does not contain \"" + part + "\"");
}

#define CHECK(condition)                                                                            \
  do {                                                                                              \
    if (!(condition)) ::spark_estimator::testing::Fail(__FILE__, __LINE__, #condition " is false"); \
  } while (false)
#define CHECK_EQ(a, b) ::spark_estimator::testing::CheckEqual((a), (b), #a " == " #b, __FILE__, __LINE__)
#define CHECK_CONTAINS(text, part) ::spark_estimator::testing::CheckContains((text), (part), __FILE__, __LINE__)

using TestCase = std::pair<const char*, std::function<void()>>;

// Runs them all, or the one that SPARK_ESTIMATOR_TEST_CASE names.
inline int RunTests(const std::vector<TestCase>& cases) {
  const char* only = std::getenv("SPARK_ESTIMATOR_TEST_CASE");
  for (const auto& [name, run] : cases) {
    if (only != nullptr && std::string(name) != only) continue;
    std::cout << "[ run ] " << name << std::endl;
    run();
  }
  std::cout << cases.size() << " passed" << std::endl;
  return 0;
}

}  // namespace spark_estimator::testing

#endif  // SPARK_ESTIMATOR_TESTS_CHECK_H_
