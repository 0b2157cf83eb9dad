// How far a run has come, for whoever watches: a line on a terminal, and lines of JSON in a file.
// Must not know what is trained.
#include "tools/run_progress.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "models/error.h"
#include "models/file.h"
#include "models/units.h"

namespace pipelag {
namespace {

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The decimal number that the float is known by.
double Shown(float value) { return ParseDecimal(fmt::format("{}", value)); }

/// "3 h 05 min", "4 min 10 s", "12 s".
std::string TimeText(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole >= 3600) return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
  if (whole >= 60) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} s", whole);
}

}  // namespace

ProgressLine::ProgressLine(std::string name, const RunExtent& extent)
    : name_(std::move(name)),
      extent_(extent),
      terminal_(isatty(STDERR_FILENO) == 1),
      start_(Clock::now()) {}

ProgressLine::~ProgressLine() {
  if (shown_) fmt::print(stderr, "\r\x1b[K");
}

void ProgressLine::Show(const StepReport& report) {
  constexpr auto kPause = std::chrono::milliseconds(50);
  const Clock::time_point now = Clock::now();
  if (!terminal_ || (shown_ && now - last_shown_ < kPause)) return;
  shown_ = true;
  last_shown_ = now;
  constexpr int64_t kWidth = 30;
  const int64_t done = report.steps_done - extent_.first_step;
  const int64_t left = extent_.last_step - report.steps_done;
  const double per_step = SecondsSince(start_) / static_cast<double>(done);
  const auto filled = static_cast<size_t>(kWidth * report.steps_done / extent_.last_step);
  fmt::print(stderr, "\r\x1b[K{:<10} [{:<{}}] {}/{}  loss {:.4f}  {:.0f} tokens/s  {} left", name_,
             std::string(filled, '#'), kWidth, report.steps_done, extent_.last_step, report.loss,
             static_cast<double>(extent_.tokens_per_step) / per_step,
             TimeText(per_step * static_cast<double>(left)));
  std::fflush(stderr);
}

StepLog::StepLog(std::string file, bool append) : file_(std::move(file)), goes_on_(append) {
  const int mode = append ? O_APPEND : O_TRUNC;
  descriptor_ = open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | mode, 0644);
  if (descriptor_ < 0) {
    throw Error(fmt::format("{}: cannot be written: {}", file_, std::strerror(errno)));
  }
}

StepLog::~StepLog() {
  if (descriptor_ >= 0) close(descriptor_);
}

void StepLog::Begin(const nlohmann::ordered_json& header, const RunExtent& extent) {
  extent_ = extent;
  start_ = std::chrono::steady_clock::now();
  seconds_ = 0;
  if (goes_on_) DropAfter(extent.first_step);
  WriteLine(header);
}

/// Keeps all up to the last line of a step that is not later. Headers and half a line that a killed
/// run left go too.
void StepLog::DropAfter(int64_t step) {
  if (!std::filesystem::is_regular_file(file_)) return;
  const std::string content = ReadFile(file_);
  size_t kept = content.rfind('\n') + 1;
  while (kept > 0) {
    const size_t start = kept == 1 ? 0 : content.rfind('\n', kept - 2) + 1;
    const auto line = nlohmann::json::parse(content.substr(start, kept - start), nullptr, false);
    if (line.is_object() && line.contains("step") && line["step"] <= step) break;
    kept = start;
  }
  if (ftruncate(descriptor_, static_cast<off_t>(kept)) != 0) {
    throw Error(fmt::format("{}: cannot be shortened: {}", file_, std::strerror(errno)));
  }
}

void StepLog::Add(const StepReport& report) {
  const double seconds = SecondsSince(start_);
  nlohmann::ordered_json json = {{"step", report.steps_done},
                                 {"loss", report.loss},
                                 {"learning_rate", Shown(report.learning_rate)}};
  if (report.gradient_norm) json["gradient_norm"] = *report.gradient_norm;
  json["tokens"] = report.steps_done * extent_.tokens_per_step;
  json["tokens_per_s"] = static_cast<double>(extent_.tokens_per_step) / (seconds - seconds_);
  json["seconds"] = seconds;
  seconds_ = seconds;
  WriteLine(json);
}

void StepLog::WriteLine(const nlohmann::ordered_json& json) {
  const std::string line = json.dump() + '\n';
  for (size_t done = 0; done < line.size();) {
    const ssize_t n = write(descriptor_, line.data() + done, line.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw Error(fmt::format("{}: cannot be written: {}", file_, std::strerror(errno)));
    done += static_cast<size_t>(n);
  }
}

}  // namespace pipelag
