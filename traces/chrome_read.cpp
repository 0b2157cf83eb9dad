// Reads back the Chrome trace JSON that ToChrome writes. Events are taken one at a time from the
// parser and numbers as the text they were written in: a double of microseconds loses nanoseconds.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <variant>

#include "models/error.h"
#include "models/file.h"
#include "traces/chrome.h"
#include "traces/chrome_layout.h"

namespace pipelag {
namespace {

using Json = nlohmann::json;

/// Times beyond this (36 years) are taken for garbage: their sums might not fit.
constexpr int64_t kLongest = int64_t{1} << 60;
constexpr int64_t kMostRanks = int64_t{1} << 20;

/// A number that is no 64-bit integer, as written.
struct Decimal {
  double value = 0;
  std::string text;
};

constexpr std::string_view kNotOurs =
    "not a trace written by pipelag: expected an object with \"pipelag\" and \"traceEvents\"";

using Value = std::variant<std::nullptr_t, bool, int64_t, Decimal, std::string>;

std::string_view TypeName(const Value& value) {
  constexpr std::array<std::string_view, 5> kNames = {"null", "true or false", "a whole number",
                                                      "a number", "a text"};
  return kNames[value.index()];
}

/// Microseconds as a plain decimal, rounded to nanoseconds digit by digit.
std::optional<int64_t> RoundedNanoseconds(std::string_view text) {
  const size_t point = text.find('.');
  if (point == std::string_view::npos || text.find_first_of("eE") != std::string_view::npos) {
    return std::nullopt;
  }
  const bool negative = text.front() == '-';
  const std::string_view fraction = text.substr(point + 1);
  std::string digits(text.substr(negative ? 1 : 0, point - (negative ? 1 : 0)));
  digits += fraction.substr(0, 3);
  digits.append(3 - std::min<size_t>(3, fraction.size()), '0');
  int64_t size = 0;
  if (std::from_chars(digits.data(), digits.data() + digits.size(), size).ec != std::errc() ||
      size > kLongest) {
    return std::nullopt;
  }
  if (fraction.size() > 3 && fraction[3] >= '5') ++size;
  return negative ? -size : size;
}

/// A flat JSON object: values by their path, such as "args.first.stage".
class Fields {
 public:
  Fields(const std::string& file, std::string place) : file_(&file), place_(std::move(place)) {}

  void Add(std::string path, Value value) {
    values_.emplace_back(std::move(path), std::move(value));
  }

  [[noreturn]] void Fail(const std::string& path, std::string_view what) const {
    throw Error(fmt::format("{}: {}{}: {}", *file_, place_, path, what));
  }

  /// nullptr if it is not there.
  const Value* Find(std::string_view path) const {
    for (const auto& [key, value] : values_) {
      if (key == path) return &value;
    }
    return nullptr;
  }

  const std::string& String(const std::string& path) const {
    return Get<std::string>(path, "a text");
  }

  /// Within [least, most].
  int64_t Integer(const std::string& path, int64_t least,
                  int64_t most = std::numeric_limits<int64_t>::max()) const {
    const int64_t value = Get<int64_t>(path, "a whole number");
    if (value < least || value > most) {
      Fail(path, fmt::format("{} is out of range, it must be {}", value,
                             most == std::numeric_limits<int64_t>::max()
                                 ? fmt::format("at least {}", least)
                                 : fmt::format("from {} to {}", least, most)));
    }
    return value;
  }

  int64_t IntegerOr(const std::string& path, int64_t otherwise, int64_t least,
                    int64_t most = std::numeric_limits<int64_t>::max()) const {
    return Find(path) == nullptr ? otherwise : Integer(path, least, most);
  }

  bool BoolOr(const std::string& path, bool otherwise) const {
    return Find(path) == nullptr ? otherwise : Get<bool>(path, "true or false");
  }

  /// A number of microseconds.
  Nanoseconds Time(const std::string& path) const {
    const Value& value = At(path);
    std::optional<int64_t> nanoseconds;
    if (const auto* whole = std::get_if<int64_t>(&value)) {
      const bool fits = *whole >= -kLongest / 1000 && *whole <= kLongest / 1000;
      if (fits) nanoseconds = *whole * 1000;
    } else if (const auto* decimal = std::get_if<Decimal>(&value)) {
      nanoseconds = RoundedNanoseconds(decimal->text);
      if (!nanoseconds && std::abs(decimal->value) < static_cast<double>(kLongest) / 1000) {
        nanoseconds = std::llround(decimal->value * 1000);
      }
    } else {
      Fail(path, fmt::format("expected a number of microseconds, not {}", TypeName(value)));
    }
    if (!nanoseconds || *nanoseconds > kLongest || *nanoseconds < -kLongest) {
      Fail(path, "is too large a time");
    }
    return Nanoseconds{*nanoseconds};
  }

 private:
  const Value& At(const std::string& path) const {
    const Value* value = Find(path);
    if (value == nullptr) Fail(path, "is missing");
    return *value;
  }

  template <typename T>
  const T& Get(const std::string& path, std::string_view expected) const {
    const Value& value = At(path);
    const T* held = std::get_if<T>(&value);
    if (held == nullptr) Fail(path, fmt::format("expected {}, not {}", expected, TypeName(value)));
    return *held;
  }

  const std::string* file_;
  std::string place_;
  std::vector<std::pair<std::string, Value>> values_;
};

/// Spans of a file and where each came from, before the number of ranks is known.
struct Found {
  std::vector<Span> spans;
  std::vector<int64_t> event;  ///< index of the event, for each span
};

/// The fields below `path` ("args." or "args.first.").
Span SpanOf(const Fields& event, const std::string& path) {
  constexpr int64_t kInt = std::numeric_limits<int>::max();
  const auto kind = KindFromName(event.String(path + "kind"));
  if (!kind) event.Fail(path + "kind", "is not the name of a kind of action");
  Span span;
  span.kind = *kind;
  span.rank = static_cast<int>(event.Integer("pid", 0, kInt));
  span.stage = static_cast<int>(event.Integer(path + "stage", 0, kInt));
  span.microbatch = event.Integer(path + (HasMicrobatch(*kind) ? "microbatch" : "step"), 0);
  const bool transfer = IsSend(*kind) || IsReceive(*kind);
  span.peer = static_cast<int>(transfer ? event.Integer(path + "peer", 0, kInt)
                                        : event.IntegerOr(path + "peer", -1, -1, kInt));
  span.start = event.Time("ts");
  const Nanoseconds duration = event.Time("dur");
  if (duration.count() < 0) event.Fail("dur", "must not be negative");
  span.end = span.start + duration;
  // A slice that had to end early says here when its action really did.
  span.end =
      Nanoseconds{event.IntegerOr("args.end_ns", span.end.count(), span.end.count(), 2 * kLongest)};
  span.wait = Nanoseconds{event.IntegerOr(path + "wait_ns", 0, 0, kLongest)};
  span.weight_version = event.IntegerOr(path + "weight_version", -1, -1);
  span.bytes = event.IntegerOr(path + "bytes", 0, 0);
  span.overlapped = event.BoolOr(path + "overlapped", false);
  return span;
}

void ReadEvent(const Fields& event, int64_t index, Found& found) {
  const std::string& phase = event.String("ph");
  const auto keep = [&](const Span& span) {
    found.spans.push_back(span);
    found.event.push_back(index);
  };
  if (phase == "X") {
    if (event.Find("cat") != nullptr && event.String("cat") == chrome::kPathCategory) return;
    if (event.Find("args.first.kind") == nullptr) {
      keep(SpanOf(event, "args."));
      return;
    }
    for (const char* half : {"args.first.", "args.second."}) {
      Span span = SpanOf(event, half);
      span.overlapped = true;
      keep(span);
    }
  } else if (phase != "M" && phase != "C" && phase != "s" && phase != "f") {
    event.Fail("ph", fmt::format("'{}' is none of the phases X, M, C, s, f", phase));
  }
}

/// Walks the document; hands over each event as soon as it is complete, keeps the rest.
class Walker : public nlohmann::json_sax<Json> {
 public:
  explicit Walker(const std::string& file) : file_(file), head_(file, ""), event_(file, "") {}

  bool null() override { return Scalar(nullptr); }
  bool boolean(bool value) override { return Scalar(value); }
  bool number_integer(int64_t value) override { return Scalar(value); }
  bool number_unsigned(uint64_t value) override {
    if (value > uint64_t{std::numeric_limits<int64_t>::max()}) {
      return Scalar(Decimal{static_cast<double>(value), std::to_string(value)});
    }
    return Scalar(static_cast<int64_t>(value));
  }
  bool number_float(double value, const std::string& text) override {
    return Scalar(Decimal{value, text});
  }
  bool string(std::string& value) override { return Scalar(std::move(value)); }
  bool binary(Json::binary_t&) override { return false; }

  bool start_object(size_t) override { return Open(false); }
  bool start_array(size_t) override { return Open(true); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(std::string& name) override {
    path_.resize(levels_.back().path);
    path_ += name;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    throw Error(
        fmt::format("{}: not valid JSON at byte {} (was the file cut short?)", file_, position));
  }

  Fields& head() { return head_; }
  Found& found() { return found_; }
  bool has_events() const { return has_events_; }

 private:
  struct Level {
    bool array = false;
    int64_t next = 0;    ///< arrays: index of the next element
    size_t path = 0;     ///< length of the path in front of this level's keys
    bool event = false;  ///< an element of traceEvents
  };

  bool InEvents() const { return levels_.size() == 2 && levels_[1].array && in_events_; }

  /// Completes path_ for a value about to come.
  void Enter() {
    if (levels_.empty() || !levels_.back().array) return;
    path_.resize(levels_.back().path);
    path_ += fmt::format_int(levels_.back().next++).c_str();
  }

  bool Open(bool array) {
    if (levels_.empty() && array) throw Error(fmt::format("{}: {}", file_, kNotOurs));
    if (levels_.size() == 1 && path_ == "traceEvents") in_events_ = has_events_ = array;
    Level level;
    level.array = array;
    if (InEvents()) {
      event_ = Fields(file_, fmt::format("traceEvents[{}].", levels_.back().next++));
      in_event_ = level.event = true;
      path_.clear();
    } else {
      Enter();
      if (!levels_.empty()) path_ += '.';
    }
    level.path = path_.size();
    levels_.push_back(level);
    return true;
  }

  bool Close() {
    const Level level = levels_.back();
    levels_.pop_back();
    if (level.event) {
      ReadEvent(event_, levels_.back().next - 1, found_);
      in_event_ = false;
    }
    if (levels_.size() == 1) in_events_ = false;
    return true;
  }

  bool Scalar(Value value) {
    if (levels_.empty()) throw Error(fmt::format("{}: {}", file_, kNotOurs));
    if (InEvents()) {
      throw Error(fmt::format("{}: traceEvents[{}]: expected an object, not {}", file_,
                              levels_.back().next, TypeName(value)));
    }
    Enter();
    (in_event_ ? event_ : head_).Add(path_, std::move(value));
    return true;
  }

  const std::string& file_;
  std::string path_;
  std::vector<Level> levels_;
  bool in_events_ = false;
  bool in_event_ = false;
  bool has_events_ = false;
  Fields head_;
  Fields event_;
  Found found_;
};

/// The run as a whole, without spans.
Trace HeadOf(const Fields& head) {
  constexpr int64_t kInt = std::numeric_limits<int>::max();
  if (head.Find("pipelag.0.label") != nullptr) {
    head.Fail("pipelag", "holds several traces side by side, which can be looked at but not read");
  }
  Trace trace;
  trace.schedule = head.String("pipelag.schedule");
  trace.ranks = static_cast<int>(head.Integer("pipelag.ranks", 1, kMostRanks));
  trace.stages = static_cast<int>(head.Integer("pipelag.stages", 1, kInt));
  trace.microbatches = head.Integer("pipelag.microbatches", 1);
  trace.steps = head.Integer("pipelag.steps", 1);
  trace.tokens_per_step = head.Integer("pipelag.tokens_per_step", 0);
  for (int stage = 0; stage < trace.stages; ++stage) {
    const int64_t rank =
        head.Integer(fmt::format("pipelag.stage_rank.{}", stage), 0, trace.ranks - 1);
    trace.stage_rank.push_back(static_cast<int>(rank));
  }
  const std::string beyond = fmt::format("pipelag.stage_rank.{}", trace.stages);
  if (head.Find(beyond) != nullptr) {
    head.Fail(beyond, fmt::format("is one too many, there are {} stages", trace.stages));
  }
  trace.replicas = static_cast<int>(head.IntegerOr("pipelag.replicas", 1, 1, trace.ranks));
  for (const auto& [what, all] : {std::pair<const char*, int64_t>{"ranks", trace.ranks},
                                  {"stages", trace.stages},
                                  {"micro-batches of a step", trace.microbatches}}) {
    if (all % trace.replicas == 0) continue;
    head.Fail("pipelag.replicas",
              fmt::format("{} replicas cannot share {} {}", trace.replicas, all, what));
  }
  if (trace.ranks > trace.stages) {
    head.Fail("pipelag.ranks",
              fmt::format("{} ranks cannot share {} stages", trace.ranks, trace.stages));
  }
  return trace;
}

/// What could not be checked before the head was read.
void CheckSpans(const Trace& trace, const Found& found, const std::string& file) {
  for (size_t i = 0; i < found.spans.size(); ++i) {
    const Span& span = found.spans[i];
    const auto check = [&](std::string_view path, int value, std::string_view what, int count) {
      if (value < count) return;
      throw Error(fmt::format("{}: traceEvents[{}].{}: {} {} is out of range, there are {}", file,
                              found.event[i], path, what, value, count));
    };
    check("pid", span.rank, "rank", trace.ranks);
    check("args.peer", span.peer, "rank", trace.ranks);
    if (span.kind != ActionKind::kAllReduce) check("args.stage", span.stage, "stage", trace.stages);
  }
}

/// A compute lane does one thing at a time; `spans` are in order.
void CheckComputeLanes(const Trace& trace, const std::string& file_name) {
  const Span* before = nullptr;
  for (const Span& span : trace.spans) {
    if (!OnComputeLane(span.kind)) continue;
    const bool same_rank = before != nullptr && before->rank == span.rank;
    if (same_rank && span.start < before->end && !AreHalves(*before, span)) {
      throw Error(fmt::format("{}: rank {} does {} and {} at the same time", file_name, span.rank,
                              SpanName(*before), SpanName(span)));
    }
    before = &span;
  }
}

}  // namespace

Trace ReadChrome(const std::filesystem::path& file) {
  return ParseChrome(ReadFile(file), file.string());
}

Trace ReadRun(const std::filesystem::path& file) {
  Trace trace = ReadChrome(file);
  CheckComputeLanes(trace, file.string());
  return trace;
}

Trace ParseChrome(const std::string& text, const std::string& file_name) {
  if (text.empty()) throw Error(fmt::format("{}: is empty", file_name));
  // Looked for first, lest a foreign trace be blamed for one of its events.
  if (text.find("\"pipelag\"") == std::string::npos) {
    throw Error(fmt::format("{}: {}", file_name, kNotOurs));
  }
  Walker walker(file_name);
  Json::sax_parse(text, &walker);
  if (!walker.has_events()) throw Error(fmt::format("{}: traceEvents: is missing", file_name));
  Trace trace = HeadOf(walker.head());
  CheckSpans(trace, walker.found(), file_name);
  trace.spans = std::move(walker.found().spans);
  SortSpans(trace);
  return trace;
}

}  // namespace pipelag
