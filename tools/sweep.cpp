// `pipelag sweep`: the runs of `simulate` over a grid of its flags, a row each.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "models/names.h"
#include "tools/input_digest.h"
#include "tools/result_rows.h"
#include "tools/shared_work.h"
#include "tools/simulation.h"
#include "tools/table.h"

namespace pipelag {
namespace {

constexpr size_t kMostPoints = 1'000'000;

/// A flag and the values it takes in turn.
struct Dimension {
  std::string flag;
  std::vector<std::string> values;
  std::string place;
};

/// "8..64*2": 8, 16, 32, 64; "1..4": 1, 2, 3, 4; "8..64+8" by steps. Any other text is itself.
std::vector<std::string> RangeOf(const std::string& text, const std::string& place) {
  const size_t dots = text.find("..");
  if (dots == std::string::npos) return {text};
  const size_t sign = text.find_first_of("*+", dots);
  const auto number = [&](const std::string& digits, int64_t least) {
    try {
      const int64_t value = ParseInteger(digits);
      if (value >= least) return value;
    } catch (const Error&) {
    }
    throw Error(
        fmt::format("{}: '{}' is not a range, as in 1..4, 8..64*2 or 8..64+8", place, text));
  };
  const int64_t first = number(text.substr(0, dots), 0);
  const int64_t last =
      number(text.substr(dots + 2, sign == std::string::npos ? sign : sign - dots - 2), first);
  const bool times = sign != std::string::npos && text[sign] == '*';
  const int64_t by = sign == std::string::npos ? 1 : number(text.substr(sign + 1), times ? 2 : 1);
  if (times && first == 0) number("", 1);
  std::vector<std::string> values;
  for (int64_t value = first;; value = times ? value * by : value + by) {
    if (values.size() == kMostPoints) {
      throw Error(fmt::format("{}: '{}' has more than {} values", place, text, kMostPoints));
    }
    values.push_back(fmt::format("{}", value));
    if (times ? value > last / by : value > last - by) return values;
  }
}

/// "microbatches=8,16..64*2", "forward=1ms,2ms;2ms,2ms".
Dimension DimensionOf(const std::string& text, const std::string& place,
                      const std::vector<Flag>& flags) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos) {
    throw Error(fmt::format("{}: '{}' is not of the form flag=value,value", place, text));
  }
  Dimension dimension{text.substr(0, equals), {}, fmt::format("{} {}", place, text)};
  std::vector<std::string_view> names;
  for (const Flag& flag : flags) names.push_back(flag.name);
  if (std::find(names.begin(), names.end(), dimension.flag) == names.end()) {
    throw Error(fmt::format("{}: '{}' is not a flag of 'pipelag simulate'; the nearest is '{}'",
                            place, dimension.flag, Nearest(dimension.flag, names)));
  }
  const std::string values = text.substr(equals + 1);
  std::set<std::string> seen;
  const char separator = values.find(';') == std::string::npos ? ',' : ';';
  for (size_t begin = 0; begin <= values.size();) {
    const size_t end = std::min(values.size(), values.find(separator, begin));
    const std::string value = values.substr(begin, end - begin);
    if (value.empty()) throw Error(fmt::format("{}: '{}' has an empty value", place, text));
    for (std::string& one : RangeOf(value, place)) {
      if (!seen.insert(one).second) {
        throw Error(fmt::format("{}: '{}' has the value {} twice", place, text, one));
      }
      dimension.values.push_back(std::move(one));
    }
    begin = end + 1;
  }
  return dimension;
}

/// --schedule with several names is a dimension too.
std::vector<Dimension> DimensionsOf(const Arguments& arguments, const std::vector<Flag>& flags) {
  std::vector<Dimension> dimensions;
  if (arguments.Has("schedule") && arguments.Texts("schedule").size() > 1) {
    dimensions.push_back({"schedule", arguments.Texts("schedule"), arguments.PlaceOf("schedule")});
  }
  if (arguments.Has("grid")) {
    for (const std::string& text : arguments.given().at("grid").items) {
      dimensions.push_back(DimensionOf(text, arguments.PlaceOf("grid"), flags));
      const std::string& name = dimensions.back().flag;
      const auto same = [&](const Dimension& other) { return other.flag == name; };
      if (std::count_if(dimensions.begin(), dimensions.end(), same) > 1 ||
          (arguments.Has(name) && arguments.PlaceOf(name).starts_with("--"))) {
        throw Error(
            fmt::format("{}: --{} is given elsewhere as well", arguments.PlaceOf("grid"), name));
      }
    }
  }
  size_t points = 1;
  for (const Dimension& dimension : dimensions) {
    points *= dimension.values.size();
    if (points > kMostPoints) {
      throw Error(fmt::format("the grid has more than {} points", kMostPoints));
    }
  }
  return dimensions;
}

/// What a switch or a flag with a value is given by a grid's value.
Given GivenOf(const Flag& flag, const std::string& value, const std::string& place) {
  if (flag.takes == FlagValue::kNone) {
    if (value != "true")
      throw Error(fmt::format("{}: '{}' is neither true nor false", place, value));
    return {{}, false, place};
  }
  return {{value}, false, fmt::format("--{}", flag.name)};
}

class Sweep {
 public:
  explicit Sweep(const Arguments& arguments) : arguments_(arguments), flags_(SimulationFlags()) {
    dimensions_ = DimensionsOf(arguments, flags_);
    AddFixedFlags();
    keys_ = columns_.size();
    for (const char* name :
         {"step_time_ns", "makespan_ns", "bubble_steady_state", "bubble_idle_of_makespan",
          "tokens_per_s", "tokens_per_s_per_gpu", "mfu", "peak_in_flight", "peak_memory_bytes",
          "gradient_delay", "weight_versions"}) {
      columns_.push_back({name, true});
    }
    for (const char* name : {"fits", "layers_per_stage", "error", kInputsColumn}) {
      columns_.push_back({name, false});
    }
    AddPoints();
    for (size_t i = 0; i < columns_.size(); ++i) CHECK(CellOf(columns_[i].name) == i);
  }

  SharedWork Work() const {
    SharedWork work;
    work.columns = columns_;
    work.keys = keys_;
    work.points = points_;
    InputDigest inputs;
    for (const Row& point : points_) {
      Fingerprint print;
      for (const std::string& value : point) inputs.Add(value, print);
      work.inputs.push_back(print.Text());
    }
    work.evaluate = [this](size_t point) { return Evaluate(point); };
    work.noun = "points";
    ReadSharedWork(arguments_, work);
    return work;
  }

  const std::vector<Column>& columns() const { return columns_; }
  size_t CellOf(std::string_view name) const {
    const auto found = std::find_if(columns_.begin(), columns_.end(),
                                    [&](const Column& column) { return column.name == name; });
    return static_cast<size_t>(found - columns_.begin());
  }
  const std::vector<Dimension>& dimensions() const { return dimensions_; }
  size_t points() const { return points_.size(); }

 private:
  const Flag& FlagOf(const std::string& name) const {
    return *std::find_if(flags_.begin(), flags_.end(),
                         [&](const Flag& flag) { return flag.name == name; });
  }

  /// A row says all flags it comes from, so that it is known again.
  void AddFixedFlags() {
    for (const Dimension& dimension : dimensions_) columns_.push_back({dimension.flag, false});
    for (const auto& [name, given] : arguments_.given()) {
      const bool known =
          std::any_of(flags_.begin(), flags_.end(),
                      [&, &flag_name = name](const Flag& flag) { return flag.name == flag_name; });
      const bool varied =
          std::any_of(dimensions_.begin(), dimensions_.end(),
                      [&, &flag_name = name](const Dimension& d) { return d.flag == flag_name; });
      if (!known || varied) continue;
      columns_.push_back({name, false});
      fixed_.push_back(given.items.empty() ? "true"
                                           : fmt::format("{}", fmt::join(given.items, ",")));
    }
  }

  void AddPoints() {
    size_t points = 1;
    for (const Dimension& dimension : dimensions_) points *= dimension.values.size();
    for (size_t point = 0; point < points; ++point) {
      Row key(dimensions_.size());
      size_t rest = point;  // the last dimension changes fastest
      for (size_t d = dimensions_.size(); d-- > 0;) {
        const std::vector<std::string>& values = dimensions_[d].values;
        key[d] = values[rest % values.size()];
        rest /= values.size();
      }
      key.insert(key.end(), fixed_.begin(), fixed_.end());
      points_.push_back(std::move(key));
    }
  }

  std::vector<std::string> SchedulesOfGrid() const {
    for (const Dimension& dimension : dimensions_) {
      if (dimension.flag == "schedule") return dimension.values;
    }
    return {};
  }

  Row Evaluate(size_t point) const {
    Row results(columns_.size() - keys_ - 1);  // all but the inputs
    try {
      Arguments arguments = arguments_;
      for (size_t d = 0; d < dimensions_.size(); ++d) {
        const Flag& flag = FlagOf(dimensions_[d].flag);
        const std::string& value = points_[point][d];
        if (flag.takes == FlagValue::kNone && value == "false") continue;
        arguments = arguments.With(flag.name, GivenOf(flag, value, dimensions_[d].place));
      }
      const std::vector<NamedSchedule> schedules = SchedulesOf(arguments, SchedulesOfGrid());
      if (schedules.size() != 1) throw Error("a point of the grid has one schedule");
      Fill(SimulateOne(schedules[0], arguments, {.reasons = false}), results);
    } catch (const Error& error) {
      results.back() = error.what();
    } catch (const std::bad_alloc&) {
      results.back() = "there is not enough memory for a run of this size";
    }
    return results;
  }

  void Fill(const Simulated& run, Row& results) const {
    const auto set = [&](std::string_view name, std::string text) {
      results[CellOf(name) - keys_] = std::move(text);
    };
    const auto whole = [&](std::string_view name, int64_t value) {
      set(name, fmt::format("{}", value));
    };
    const Metrics& metrics = run.result.metrics;
    whole("step_time_ns", metrics.step_time.RoundedUp().count());
    whole("makespan_ns", metrics.makespan.count());
    set("bubble_steady_state", NumberText(metrics.bubble.steady_state));
    set("bubble_idle_of_makespan", NumberText(metrics.bubble.idle_of_makespan));
    if (run.throughput) {
      set("tokens_per_s", NumberText(run.throughput->tokens_per_s));
      set("tokens_per_s_per_gpu", NumberText(run.throughput->tokens_per_s_per_gpu));
      set("mfu", NumberText(run.throughput->mfu));
    }
    int64_t in_flight = 0;
    for (const RankMetrics& rank : metrics.ranks) {
      in_flight = std::max(in_flight, rank.totals.peak_in_flight);
    }
    whole("peak_in_flight", in_flight);
    Bytes memory = 0;
    for (const RankMemory& rank : run.result.memory) memory = std::max(memory, rank.peak);
    if (!run.result.memory.empty()) {
      whole("peak_memory_bytes", memory);
      set("fits", run.beyond_memory.empty() ? "true" : "false");
    }
    StageVersions greatest{.weight_versions = 0};
    for (const StageVersions& stage : run.result.versions) {
      greatest.gradient_delay = std::max(greatest.gradient_delay, stage.gradient_delay);
      greatest.weight_versions = std::max(greatest.weight_versions, stage.weight_versions);
    }
    whole("gradient_delay", greatest.gradient_delay);
    whole("weight_versions", greatest.weight_versions);
    if (!run.stages) return;
    set("layers_per_stage", fmt::format("{}", fmt::join(run.stages->counts, ",")));
  }

  const Arguments& arguments_;
  std::vector<Flag> flags_;
  std::vector<Dimension> dimensions_;
  std::vector<Column> columns_;
  size_t keys_ = 0;
  Row fixed_;
  std::vector<Row> points_;
};

std::string TextOf(const Sweep& sweep, const std::vector<Row>& rows) {
  std::vector<std::vector<std::string>> table(1);
  for (const Dimension& dimension : sweep.dimensions()) table[0].push_back(dimension.flag);
  table[0].insert(table[0].end(), {"step time", "bubble", "in flight", "memory", "delay"});
  const bool throughput = std::any_of(rows.begin(), rows.end(), [&](const Row& row) {
    return !row[sweep.CellOf("tokens_per_s")].empty();
  });
  if (throughput) table[0].push_back("tokens/s");
  std::string reasons;
  for (size_t r = 0; r < rows.size(); ++r) {
    const Row& row = rows[r];
    const auto cell = [&](std::string_view name) { return row[sweep.CellOf(name)]; };
    std::vector<std::string> line(row.begin(),
                                  row.begin() + static_cast<ptrdiff_t>(sweep.dimensions().size()));
    if (!cell("error").empty()) {
      reasons += fmt::format("{}: {}\n", fmt::join(line, " "), cell("error"));
      line.insert(line.end(), {"-", "-", "-", "-", "-"});
      if (throughput) line.push_back("-");
    } else {
      const std::string memory = cell("peak_memory_bytes");
      line.push_back(FormatDuration(Nanoseconds{ParseInteger(cell("step_time_ns"))}));
      line.push_back(FormatShare(ParseDecimal(cell("bubble_steady_state"))));
      line.push_back(cell("peak_in_flight"));
      line.push_back(memory.empty() ? "-"
                                    : FormatBytes(ParseInteger(memory)) +
                                          (cell("fits") == "false" ? " too much" : ""));
      line.push_back(cell("gradient_delay"));
      if (throughput) line.push_back(fmt::format("{:.1f}", ParseDecimal(cell("tokens_per_s"))));
    }
    table.push_back(std::move(line));
  }
  return FormatTable(table) + (reasons.empty() ? "" : "\nnot simulated:\n" + reasons);
}

/// What the flags alone make impossible is no result.
void FailIfNothingRan(const Sweep& sweep, const std::vector<Row>& rows) {
  const size_t error = sweep.CellOf("error");
  const auto end = rows.begin() + static_cast<ptrdiff_t>(sweep.points());
  const auto failed = [&](const Row& row) { return !row[error].empty(); };
  if (!std::all_of(rows.begin(), end, failed)) return;
  const std::string& first = rows.front()[error];
  const bool alike =
      std::all_of(rows.begin(), end, [&](const Row& row) { return row[error] == first; });
  if (alike) throw Error(first);
  throw Error(fmt::format("none of the {} points can be simulated; of the first: {}",
                          sweep.points(), first));
}

int Run(const Arguments& arguments) {
  constexpr std::string_view kFormats[] = {"text", "json", "csv"};
  const std::string format =
      arguments.Has("format") ? arguments.Choice("format", kFormats) : "text";
  const ProcessPlace place = ProcessPlaceOf();
  const Sweep sweep(arguments);
  const std::vector<Row> rows = RunSharedWork(sweep.Work(), place);
  if (place.rank > 0) return 0;
  FailIfNothingRan(sweep, rows);
  if (format == "json") {
    fmt::print("{}", RowsJson(sweep.columns(), rows));
  } else if (format == "csv") {
    fmt::print("{}", RowsCsv(sweep.columns(), rows));
  } else {
    fmt::print("{}", TextOf(sweep, rows));
  }
  return 0;
}

}  // namespace

Subcommand SweepCommand() {
  return {
      .name = "sweep",
      .operands = "[JOB]",
      .summary = "simulates a grid of flags, a row per point: as table, CSV or JSON",
      .details =
          "Every flag of 'pipelag simulate' may take several values by --grid, once per flag: the\n"
          "rows are all combinations, the last one given changing fastest. Values stand between\n"
          "commas, or between semicolons where they hold commas themselves; a..b is a range,\n"
          "a..b*2 doubles, a..b+8 goes by steps; a switch is true or false. A point that cannot\n"
          "be simulated says why in its row. Under mpirun or srun the points are shared out; the\n"
          "result does not depend on the number of processes or threads.\n\n"
          "Example: pipelag sweep --ranks 8 --forward 1ms --backward 2ms\n"
          "         --grid schedule=1f1b,zb-h1,2bw --grid microbatches=8..64*2 --output sweep.csv",
      .most_operands = 1,
      .reads_job = true,
      .flags = Concatenate(
          {{{"grid", "FLAG=VALUE,...", "a flag's values in turn; may be given several times",
             FlagValue::kRepeated}},
           SimulationFlags(),
           SharedWorkFlags("rows"),
           {{"format", "text|json|csv", "form of the result (default: text)"}}}),
      .run = Run,
  };
}

}  // namespace pipelag
