// Which cores threads run on. Knows nothing of what they do there.
#pragma once

#include <sched.h>

#include <cstdint>

namespace pipelag {

/// How many cores the calling thread may use. Throws Error if the system does not say.
int64_t UsableCores();

/// As long as it lives, the calling thread and those it starts use but the first `count` of these,
/// at least one and at most all of them. Lives and dies on one thread. Throws Error if the system
/// does not let it.
class OnCores {
 public:
  explicit OnCores(int64_t count);
  ~OnCores();
  OnCores(const OnCores&) = delete;
  OnCores& operator=(const OnCores&) = delete;

 private:
  cpu_set_t before_;
};

}  // namespace pipelag
