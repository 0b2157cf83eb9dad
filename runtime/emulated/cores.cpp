#include "runtime/emulated/cores.h"

#include <cerrno>
#include <cstring>
#include <string>

#include "models/error.h"

namespace pipelag {
namespace {

constexpr pid_t kThisThread = 0;

cpu_set_t Usable() {
  cpu_set_t cores;
  if (sched_getaffinity(kThisThread, sizeof cores, &cores) != 0) {
    throw Error(std::string("the system does not say which cores there are: ") +
                std::strerror(errno));
  }
  return cores;
}

}  // namespace

int64_t UsableCores() {
  const cpu_set_t usable = Usable();
  return CPU_COUNT(&usable);
}

OnCores::OnCores(int64_t count) : before_(Usable()) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (size_t core = 0; core < CPU_SETSIZE && CPU_COUNT(&cores) < count; ++core) {
    if (CPU_ISSET(core, &before_)) CPU_SET(core, &cores);
  }
  CHECK(count > 0 && CPU_COUNT(&cores) == count);
  if (sched_setaffinity(kThisThread, sizeof cores, &cores) != 0) {
    throw Error(std::string("the system does not let threads be held to cores: ") +
                std::strerror(errno));
  }
}

OnCores::~OnCores() { static_cast<void>(sched_setaffinity(kThisThread, sizeof before_, &before_)); }

}  // namespace pipelag
