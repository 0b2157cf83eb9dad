// A bar on the terminal while long work goes on.
#include "tools/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <thread>

namespace pipelag {

Progress::Progress(size_t total, std::string_view noun)
    : total_(std::max<size_t>(total, 1)), noun_(noun), terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (terminal_) fmt::print(stderr, "\r\x1b[K");
}

void Progress::Show(size_t done, std::string_view beside) {
  if (!terminal_) return;
  constexpr size_t kWidth = 40;
  fmt::print(stderr, "\r[{:<{}}] {}/{} {}{}{}", std::string(kWidth * done / total_, '#'), kWidth,
             done, total_, noun_, beside.empty() ? "" : ", ", beside);
  std::fflush(stderr);
}

Flag JobsFlag(std::string_view noun) {
  return {"jobs", "COUNT", fmt::format("{} at once (default: one per core)", noun)};
}

int JobsOf(const Arguments& arguments) {
  const auto cores = std::max(1u, std::thread::hardware_concurrency());
  return static_cast<int>(arguments.CountOr("jobs", cores));
}

}  // namespace pipelag
