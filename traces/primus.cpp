// The folder form of AMD Primus timings, checked path by path.
#include "traces/primus.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "models/error.h"
#include "models/json_file.h"

namespace pipelag {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostRanks = 4096;
constexpr int64_t kMostMicrobatches = 1 << 20;

/// A JSON file, read path by path; whatever is wrong names the file and the place.
class Document {
 public:
  explicit Document(const std::filesystem::path& file) : name_(file.string()) {
    root_ = ReadJson(file);
    if (!root_.is_object()) throw Error(fmt::format("{}: expected a JSON object", name_));
  }

  [[noreturn]] void Fail(const std::string& path, const std::string& what) const {
    throw Error(fmt::format("{}: {}: {}", name_, path, what));
  }

  const Json& root() const { return root_; }

  const Json& At(const std::string& path) const {
    const Json::json_pointer pointer(path);
    if (!root_.contains(pointer)) Fail(path, "is missing");
    return root_.at(pointer);
  }

  int64_t Count(const std::string& path, int64_t most) const {
    const Json& value = At(path);
    if (!value.is_number_integer() || value < 1 || value > most) {
      Fail(path, fmt::format("expected a whole number from 1 to {}", most));
    }
    return value.get<int64_t>();
  }

  Nanoseconds Time(const std::string& path) const {
    constexpr double kLongest = 1e12;  // milliseconds
    constexpr double kPerMillisecond = 1e6;
    const Json& value = At(path);
    if (!value.is_number() || !(value.get<double>() >= 0) || value.get<double>() > kLongest) {
      Fail(path, fmt::format("expected a time in milliseconds, from 0 to {}", kLongest));
    }
    return Nanoseconds{std::llround(value.get<double>() * kPerMillisecond)};
  }

  std::vector<Nanoseconds> Times(const std::string& path, int64_t count) const {
    const Json& list = At(path);
    if (!list.is_array() || list.size() != static_cast<size_t>(count)) {
      Fail(path, fmt::format("expected a list of {} times, one per micro-batch", count));
    }
    std::vector<Nanoseconds> times;
    for (int64_t k = 0; k < count; ++k) times.push_back(Time(fmt::format("{}/{}", path, k)));
    return times;
  }

 private:
  std::string name_;
  Json root_;
};

/// What a rank did in one iteration.
struct Iteration {
  Nanoseconds total{0};
  std::array<std::vector<Nanoseconds>, 2> start;  // F, B; by micro-batch
  std::array<std::vector<Nanoseconds>, 2> end;
};

using Iterations = std::map<int64_t, Iteration>;

/// One entry of the order of 1F1B: F or B (0 or 1) and its micro-batch.
using Entry = std::pair<size_t, size_t>;

std::vector<Entry> OrderOf(int64_t rank, int64_t ranks, int64_t microbatches) {
  const auto m = static_cast<size_t>(microbatches);
  const auto warm_up = static_cast<size_t>(std::min(microbatches, ranks - 1 - rank));
  std::vector<Entry> order;
  for (size_t k = 0; k < warm_up; ++k) order.emplace_back(0, k);
  for (size_t k = 0; k < m; ++k) {
    if (warm_up + k < m) order.emplace_back(0, warm_up + k);
    order.emplace_back(1, k);
  }
  return order;
}

constexpr std::array<const char*, 2> kLists = {"fwd", "bwd"};

void CheckOrder(const Document& document, const std::string& path, const Iteration& iteration,
                const std::vector<Entry>& order) {
  Nanoseconds free{0};
  for (const auto& [list, k] : order) {
    const Nanoseconds start = iteration.start[list][k];
    const auto place = [&](const char* edge) {
      return fmt::format("{}/{}_{}/{}", path, kLists[list], edge, k);
    };
    if (start < free) {
      document.Fail(place("start"), "starts before the action before it, in 1F1B order, has ended");
    }
    free = iteration.end[list][k];
    if (free < start) document.Fail(place("end"), "ends before it starts");
  }
}

Iterations ReadRank(const std::filesystem::path& file, int64_t rank, int64_t ranks,
                    int64_t microbatches) {
  const Document document(file);
  const std::vector<Entry> order = OrderOf(rank, ranks, microbatches);
  Iterations iterations;
  for (const auto& [key, value] : document.root().items()) {
    const std::string path = "/" + key;
    int64_t number = 0;
    const auto [rest, error] = std::from_chars(key.data(), key.data() + key.size(), number);
    if (error != std::errc() || rest != key.data() + key.size()) {
      document.Fail(path, "is not the number of an iteration");
    }
    Iteration& iteration = iterations[number];
    iteration.total = document.Time(path + "/total");
    for (size_t list = 0; list < kLists.size(); ++list) {
      const std::string prefix = fmt::format("{}/{}_", path, kLists[list]);
      iteration.start[list] = document.Times(prefix + "start", microbatches);
      iteration.end[list] = document.Times(prefix + "end", microbatches);
    }
    CheckOrder(document, path, iteration, order);
  }
  if (iterations.empty()) document.Fail("/", "has no iterations");
  return iterations;
}

/// Appends what `rank` did in one step, from `offset` on. `all` holds this iteration of every rank.
void AddStep(const std::vector<const Iteration*>& all, size_t rank, int64_t step,
             Nanoseconds offset, const std::vector<Entry>& order, Trace& trace) {
  const Iteration& own = *all[rank];
  Nanoseconds free = own.start[order.front().first][order.front().second];
  for (const auto& [list, k] : order) {
    Span span;
    span.rank = span.stage = static_cast<int>(rank);
    span.kind = list == 0 ? ActionKind::kForward : ActionKind::kBackward;
    span.microbatch = step * trace.microbatches + static_cast<int64_t>(k);
    span.start = offset + own.start[list][k];
    span.end = offset + own.end[list][k];
    const size_t producer = list == 0 ? rank - 1 : rank + 1;  // none: beyond the last
    if (producer < all.size() && all[producer]->end[list][k] > free) {
      span.wait = own.start[list][k] - free;
    }
    free = own.end[list][k];
    trace.spans.push_back(span);
  }
}

}  // namespace

bool IsPrimus(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path / "config.json", ignored) &&
         std::filesystem::is_regular_file(path / "pp_rank_0.json", ignored);
}

Trace ReadPrimus(const std::filesystem::path& folder) {
  const Document config(folder / "config.json");
  const int64_t ranks = config.Count("/pp_size", kMostRanks);
  const int64_t microbatches = config.Count("/num_mbs", kMostMicrobatches);
  if (config.root().contains("vp_size") && config.Count("/vp_size", kMostRanks) != 1) {
    config.Fail("/vp_size", "only runs with one chunk per rank can be read");
  }
  Trace trace;
  trace.schedule = "1f1b";
  trace.ranks = trace.stages = static_cast<int>(ranks);
  trace.microbatches = microbatches;
  std::vector<Iterations> of_rank;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const std::filesystem::path file = folder / fmt::format("pp_rank_{}.json", rank);
    of_rank.push_back(ReadRank(file, rank, ranks, microbatches));
    trace.stage_rank.push_back(static_cast<int>(rank));
    const bool alike = std::equal(of_rank.back().begin(), of_rank.back().end(),
                                  of_rank.front().begin(), of_rank.front().end(),
                                  [](const auto& a, const auto& b) { return a.first == b.first; });
    if (!alike) {
      throw Error(fmt::format("{}: /: has other iterations than pp_rank_0.json", file.string()));
    }
  }
  Nanoseconds offset{0};
  for (const auto& [number, first] : of_rank.front()) {
    std::vector<const Iteration*> all;
    for (const Iterations& iterations : of_rank) all.push_back(&iterations.at(number));
    Nanoseconds length{0};
    for (size_t rank = 0; rank < all.size(); ++rank) {
      AddStep(all, rank, trace.steps, offset,
              OrderOf(static_cast<int64_t>(rank), ranks, microbatches), trace);
      length = std::max({length, all[rank]->total, all[rank]->end[1].back()});
    }
    offset += length;
    ++trace.steps;
  }
  SortSpans(trace);
  return trace;
}

}  // namespace pipelag
