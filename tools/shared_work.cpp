// Many independent rows of results, computed on several threads and processes.
#include "tools/shared_work.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "models/environment.h"
#include "models/error.h"
#include "sim/parallel.h"
#include "tools/input_digest.h"
#include "tools/progress.h"

namespace pipelag {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// Finished rows are written down this often.
constexpr auto kBetweenWrites = std::chrono::seconds(2);
constexpr auto kBetweenLooks = std::chrono::milliseconds(20);

/// Fit for a file's name.
std::string JobName() {
  std::string name;
  for (const char* variable :
       {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID", "SLURM_STEP_ID", "PMI_PORT"}) {
    const char* text = std::getenv(variable);
    if (text == nullptr) continue;
    name += '-';
    for (const char* c = text; *c != 0; ++c) {
      name += std::isalnum(static_cast<unsigned char>(*c)) != 0 ? *c : '_';
    }
  }
  return name;
}

/// The rows of one process's share, and those that are known beforehand.
class Share {
 public:
  Share(const SharedWork& work, const ProcessPlace& place) : work_(work), place_(place) {
    std::map<Row, size_t> index;
    for (size_t i = 0; i < work.points.size(); ++i) {
      CHECK(work.points[i].size() == work.keys);
      CHECK(index.emplace(work.points[i], i).second);
    }
    CHECK(work.inputs.size() == work.points.size() && work.columns.back().name == kInputsColumn);
    index_ = std::move(index);
    rows_.resize(work.points.size());
    Fingerprint all;
    for (const Column& column : work.columns) all.Add(column.name);
    for (size_t i = 0; i < work.points.size(); ++i) {
      for (const std::string& cell : work.points[i]) all.Add(cell);
      all.Add(work.inputs[i]);
    }
    fingerprint_ = all.Text();
    if (work.resume && fs::exists(work.output)) TakeAll(work.output, true);
  }

  void Compute() {
    std::vector<size_t> open;
    size_t own = 0;
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (!IsOf(i, place_.rank)) continue;
      ++own;
      if (!rows_[i]) open.push_back(i);
    }
    Progress progress(own, work_.noun);
    size_t done = own - open.size();
    bool unwritten = false;
    Clock::time_point written = Clock::now();
    ForEachInParallel(open.size(), work_.threads, [&](size_t at) {
      const size_t i = open[at];
      Row row = work_.points[i];
      const Row results = work_.evaluate(i);
      row.insert(row.end(), results.begin(), results.end());
      row.push_back(work_.inputs[i]);
      CHECK(row.size() == work_.columns.size());
      const std::lock_guard lock(mutex_);
      rows_[i] = std::move(row);
      unwritten = true;
      progress.Show(++done);
      const bool kept = !work_.output.empty() || place_.rank > 0;
      if (!kept || Clock::now() - written < kBetweenWrites) return;
      Write();
      unwritten = false;
      written = Clock::now();
    });
    // Whoever gathers removes the file as soon as all is in it, and not a second time.
    if (place_.rank > 0 && unwritten) Write();
  }

  /// Takes in what the other processes write, until all is there.
  void Gather() {
    for (int rank = 1; rank < place_.size; ++rank) {
      size_t had = 0;
      Clock::time_point changed = Clock::now();
      while (!Complete(rank)) {
        const fs::path part = PartOf(rank);
        if (fs::exists(part)) TakeAll(part, false);
        const size_t has = CountOf(rank);
        if (has != had) changed = Clock::now();
        had = has;
        if (Complete(rank)) break;
        if (Clock::now() - changed > work_.deadline) FailWaiting(rank);
        std::this_thread::sleep_for(kBetweenLooks);
      }
    }
    for (int rank = 1; rank < place_.size; ++rank) {
      std::error_code ignored;
      fs::remove(PartOf(rank), ignored);
    }
  }

  std::vector<Row> Finished() const {
    std::vector<Row> rows;
    for (const auto& row : rows_) {
      if (row) rows.push_back(*row);
    }
    rows.insert(rows.end(), others_.begin(), others_.end());
    return rows;
  }

 private:
  bool IsOf(size_t point, int rank) const {
    return point % static_cast<size_t>(place_.size) == static_cast<size_t>(rank);
  }
  size_t CountOf(int rank) const {
    size_t count = 0;
    for (size_t i = 0; i < rows_.size(); ++i) count += IsOf(i, rank) && rows_[i] ? 1 : 0;
    return count;
  }
  bool Complete(int rank) const {
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (IsOf(i, rank) && !rows_[i]) return false;
    }
    return true;
  }
  /// Whose flags or files differ has another name.
  std::string PartBeginning(int rank) const {
    return (work_.output.empty() ? "pipelag" : work_.output.string()) +
           fmt::format(".part-{}-of-{}{}-", rank, place_.size, place_.job);
  }
  fs::path PartOf(int rank) const { return PartBeginning(rank) + fingerprint_; }

  /// What is there already is kept.
  [[noreturn]] void FailWaiting(int rank) const {
    if (!work_.output.empty()) Write();
    const std::string kept = work_.output.empty()
                                 ? ""
                                 : fmt::format("; {} rows are in {}, to go on from with --resume",
                                               Finished().size(), work_.output.string());
    const fs::path beginning = PartBeginning(rank);
    const fs::path folder = beginning.has_parent_path() ? beginning.parent_path() : ".";
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder, ignored)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with(beginning.filename().string()) ||
          name == PartOf(rank).filename().string()) {
        continue;
      }
      throw Error(fmt::format(
          "process {} of {} has other flags or files than process 0, or what it left is of another "
          "run: its rows are in {}{}",
          rank, place_.size, entry.path().string(), kept));
    }
    throw Error(fmt::format(
        "process 0 waits for process {} of {}, which has written nothing to {} for {}{}", rank,
        place_.size, PartOf(rank).string(), FormatDuration(work_.deadline), kept));
  }

  void TakeAll(const fs::path& file, bool keep_others) {
    size_t number = 0;
    for (Row& row : ReadRows(file, work_.columns)) {
      ++number;
      const std::string place = fmt::format("{}: row {}", file.string(), number);
      if (keep_others) CheckFigures(row, place);  // an older run's, or someone's by hand
      Take(std::move(row), keep_others, place);
    }
  }

  /// A row has figures, or a text why not.
  void CheckFigures(const Row& row, const std::string& place) const {
    bool number = false;
    bool text = false;
    for (size_t i = work_.keys; i + 1 < row.size(); ++i) {
      (work_.columns[i].number ? number : text) |= !row[i].empty();
    }
    if (row[work_.keys].empty() && (number || !text)) {
      throw Error(fmt::format("{}: has no {}: take the row out, or leave out --resume", place,
                              work_.columns[work_.keys].name));
    }
    for (size_t i = work_.keys; i < row.size(); ++i) {
      const Column& column = work_.columns[i];
      if (!column.number || row[i].empty()) continue;
      const bool time = column.name.ends_with("_ns");
      bool can_be = false;
      try {
        can_be = time ? ParseInteger(row[i]) > 0 : ParseDecimal(row[i]) >= 0;
      } catch (const Error&) {
      }
      if (can_be) continue;
      throw Error(fmt::format("{}: '{}' cannot be a {}: take the row out, or leave out --resume",
                              place, row[i], column.name));
    }
  }

  void Take(Row row, bool keep_others, const std::string& place) {
    const Row key(row.begin(), row.begin() + static_cast<ptrdiff_t>(work_.keys));
    const auto found = index_.find(key);
    if (found == index_.end()) {
      if (keep_others) others_.push_back(std::move(row));
      return;
    }
    if (row.back() != work_.inputs[found->second]) {
      throw Error(fmt::format(
          "{}: was computed from other inputs: a file that the flags name has changed since; give "
          "another file, or leave out --resume",
          place));
    }
    rows_[found->second] = std::move(row);
  }

  void Write() const {
    if (place_.rank == 0) {
      WriteRows(work_.output, work_.columns, Finished());
      return;
    }
    std::vector<Row> own;
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (IsOf(i, place_.rank) && rows_[i]) own.push_back(*rows_[i]);
    }
    WriteRows(PartOf(place_.rank), work_.columns, own);
  }

  const SharedWork& work_;
  const ProcessPlace& place_;
  std::map<Row, size_t> index_;
  std::string fingerprint_;               ///< of all points
  std::vector<std::optional<Row>> rows_;  ///< of the points
  std::vector<Row> others_;               ///< of the resumed file
  std::mutex mutex_;
};

}  // namespace

ProcessPlace ProcessPlaceOf() {
  constexpr std::pair<const char*, const char*> kVariables[] = {
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
      {"PMI_RANK", "PMI_SIZE"},
      {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
      {"SLURM_PROCID", "SLURM_NTASKS"}};
  constexpr int kMostProcesses = 1'000'000;
  for (const auto& [rank, size] : kVariables) {
    if (std::getenv(rank) == nullptr) continue;
    const std::optional<int> processes = NumberInEnvironment(size, 1, kMostProcesses);
    if (!processes) continue;
    const bool batch = std::string_view(size) == "SLURM_NTASKS" &&
                       std::getenv("SLURM_STEP_ID") == nullptr &&
                       std::string_view(std::getenv(rank)) == "0";
    if (batch) continue;
    ProcessPlace place;
    place.size = *processes;
    place.rank = *NumberInEnvironment(rank, 0, place.size - 1);
    place.job = JobName();
    return place;
  }
  return {};
}

std::vector<Flag> SharedWorkFlags(std::string_view noun) {
  return {
      {"output", "FILE", fmt::format("keeps the {} in a .csv or .json file", noun)},
      {"resume", "", fmt::format("{} in --output are taken as they are", noun), FlagValue::kNone},
      JobsFlag(noun),
      {"deadline", "TIME",
       "longest wait for another process that writes nothing, under mpirun (default: 600s)"}};
}

void ReadSharedWork(const Arguments& arguments, SharedWork& work) {
  constexpr auto kDefaultDeadline = std::chrono::seconds(600);
  work.output = arguments.Output("output");
  if (!work.output.empty()) CheckRowsFile(work.output, arguments.PlaceOf("output"));
  work.resume = arguments.Has("resume");
  if (work.resume && work.output.empty()) {
    throw Error(fmt::format("{}: needs --output, where the rows are", arguments.PlaceOf("resume")));
  }
  work.threads = JobsOf(arguments);
  work.deadline =
      arguments.Has("deadline") ? arguments.Duration("deadline") : Nanoseconds{kDefaultDeadline};
}

std::vector<Row> RunSharedWork(const SharedWork& work, const ProcessPlace& place) {
  if (place.size > 1 && work.output.empty() && place.job.empty()) {
    throw Error(fmt::format("{} processes need --output, a file in a folder that all of them see",
                            place.size));
  }
  Share share(work, place);
  share.Compute();
  if (place.rank > 0) return {};
  share.Gather();
  std::vector<Row> rows = share.Finished();
  if (!work.output.empty()) WriteRows(work.output, work.columns, rows);
  return rows;
}

}  // namespace pipelag
