#include "models/schedule/issue_order.h"

#include <algorithm>
#include <tuple>

#include "models/schedule/given_order.h"
#include "models/schedule/periodic_order.h"
#include "models/schedule/play.h"

namespace pipelag {
namespace {

enum class Class { kTransfer, kReduction, kCompute };

/// A place in the one order. `first` to `third` tell those of one class apart: sender, payload and
/// receiver; the group; nothing, since a rank computes one thing at a time.
struct Key {
  int64_t start = 0;
  Class of = Class::kCompute;
  int first = 0;
  ActionKind second = ActionKind::kForward;
  int third = 0;
  auto operator<=>(const Key&) const = default;
};

struct Entry {
  Key key;
  RunAction action;
};

class Recorder {
 public:
  explicit Recorder(const Program& program)
      : program_(program), entries_(static_cast<size_t>(program.schedule().ranks)) {}

  void OnCompute(int rank, const RunAction& action, int64_t, int64_t start, int64_t, bool) {
    entries_[static_cast<size_t>(rank)].push_back({{start}, action});
  }
  void OnTransfer(int lane, const RunAction& producer, int64_t, int64_t start, int64_t, int64_t) {
    const Lane& on = program_.lanes()[static_cast<size_t>(lane)];
    const bool forward = on.payload == ActionKind::kSendForward;
    const Key key{start, Class::kTransfer, on.sender, on.payload, on.receiver};
    RunAction message = producer;
    message.position = -1;
    message.overlaps_next = false;
    message.kind = on.payload;
    entries_[static_cast<size_t>(on.sender)].push_back({key, message});
    message.kind = forward ? ActionKind::kReceiveForward : ActionKind::kReceiveBackward;
    message.stage += forward ? 1 : -1;
    entries_[static_cast<size_t>(on.receiver)].push_back({key, message});
  }
  void OnReduce(int rank, int group, int64_t step, int64_t start, int64_t) {
    RunAction reduction{ActionKind::kAllReduce, group, step, step};
    reduction.position = -1;
    entries_[static_cast<size_t>(rank)].push_back({{start, Class::kReduction, group}, reduction});
  }

  std::vector<std::vector<RunAction>> Sorted() {
    std::vector<std::vector<RunAction>> orders;
    for (std::vector<Entry>& entries : entries_) {
      // Stable, for the halves of an OVERLAP have one key.
      std::stable_sort(entries.begin(), entries.end(),
                       [](const Entry& a, const Entry& b) { return a.key < b.key; });
      std::vector<RunAction>& order = orders.emplace_back();
      order.reserve(entries.size());
      for (const Entry& entry : entries) order.push_back(entry.action);
    }
    return orders;
  }

 private:
  const Program& program_;
  std::vector<std::vector<Entry>> entries_;
};

/// ARs in the order are where they start; they go back to where the body posts them.
std::vector<Action> PutReductionsBack(const std::vector<RunAction>& order,
                                      const std::vector<Action>& body) {
  std::vector<Action> row;
  size_t next = 0;
  const auto post = [&] {
    for (; next < body.size() && body[next].kind == ActionKind::kAllReduce; ++next) {
      row.push_back(body[next]);
    }
  };
  post();
  for (const RunAction& a : order) {
    if (IsTransfer(a.kind)) {
      row.push_back({static_cast<int32_t>(a.microbatch), static_cast<uint16_t>(a.stage), a.kind});
    } else if (a.kind != ActionKind::kAllReduce) {
      CHECK(a.position == static_cast<int>(next));
      row.push_back(body[next++]);
      post();
    }
  }
  return row;
}

}  // namespace

std::vector<std::vector<RunAction>> IssueOrder(const Program& program) {
  if (!program.schedule().given_order.empty()) return GivenIssueOrder(program);
  Recorder recorder(program);
  const UnitTimes unit;
  CHECK(Play(program, unit, PlayLinks{.all = {.occupancy = 1}}, recorder).Run().empty());
  return recorder.Sorted();
}

std::vector<std::vector<Action>> BodyWithTransfers(const Program& program) {
  const Schedule& schedule = program.schedule();
  if (!schedule.given_order.empty()) return schedule.given_order;
  if (!schedule.flushes()) return PeriodicBodyWithTransfers(program);
  const std::vector<std::vector<RunAction>> orders = IssueOrder(program.WithSteps(1));
  std::vector<std::vector<Action>> rows;
  for (size_t rank = 0; rank < orders.size(); ++rank) {
    rows.push_back(PutReductionsBack(orders[rank], schedule.body[rank]));
  }
  return rows;
}

}  // namespace pipelag
