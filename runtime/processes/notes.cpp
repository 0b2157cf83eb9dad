#include "runtime/processes/notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "models/error.h"

namespace pipelag {

Notes::Notes(ProcessLink& link, int tag) : link_(link), tag_(tag), rank_(link.rank()) {
  for (int peer = 0; peer < link_.size(); ++peer) {
    if (peer != rank_) incoming_.push_back({.peer = peer, .note = {}});
  }
  for (Incoming& from : incoming_) {
    finished_.push_back(link_.Begin(
        [this, &from](Wire& wire) { return Listen(from, wire); },
        fmt::format("{} waits for {} to finish", link_.NameOf(rank_), link_.NameOf(from.peer))));
  }
}

/// True once the peer has nothing more to say.
bool Notes::Listen(Incoming& from, Wire& wire) {
  const auto post = [&] {
    from.handle = wire.Receive(from.peer, tag_, std::as_writable_bytes(std::span(&from.note, 1)));
  };
  if (from.handle == 0) post();
  while (wire.Done(from.handle)) {
    Heed(from.note);
    if (from.note.kind != Kind::kDiverged) return true;
    post();
  }
  return false;
}

void Notes::Heed(const Note& note) {
  switch (note.kind) {
    case Kind::kFinished:
      return;
    case Kind::kDiverged:
      HearOfDivergence(note);
      return;
    case Kind::kFailed:
      link_.control().Stop(
          std::make_exception_ptr(StoppedByPeer(note.rank, note.text, link_.NameOf(note.rank))));
      return;
  }
}

void Notes::HearOfDivergence(const Note& note) {
  const std::lock_guard lock(where_mutex_);
  if (note.step >= diverged()) return;
  where_ = note.text;
  diverged_.store(note.step, std::memory_order_release);
}

std::string Notes::diverged_where() const {
  const std::lock_guard lock(where_mutex_);
  return where_;
}

std::vector<EventPtr> Notes::TellAll(Note note) {
  const std::lock_guard lock(telling_);
  sent_.push_back(note);
  std::vector<EventPtr> under_way;
  for (const Incoming& from : incoming_) {
    const std::string waiting =
        fmt::format("{} waits for {} to hear of it", link_.NameOf(rank_), link_.NameOf(from.peer));
    const std::span bytes = std::as_bytes(std::span(&sent_.back(), 1));
    under_way.push_back(note.kind == Kind::kFailed
                            ? link_.SendIfThere(from.peer, tag_, bytes, waiting)
                            : link_.Send(from.peer, tag_, bytes, waiting));
  }
  return under_way;
}

void Notes::TellDiverged(int64_t step, const std::string& where) {
  Note note{.kind = Kind::kDiverged, .step = step};
  std::strncpy(note.text, where.c_str(), sizeof note.text - 1);
  HearOfDivergence(note);
  TellAll(note);
}

void Notes::FinishTogether() {
  for (const EventPtr& sent : TellAll({})) sent->Wait();
  for (const EventPtr& finished : finished_) finished->Wait();
  link_.control().CheckRunning();
}

Notes::Note Notes::NoteOf(const std::exception_ptr& error) const {
  Note note{.kind = Kind::kFailed, .rank = rank_};
  try {
    std::rethrow_exception(error);
  } catch (const StoppedByPeer& stopped) {
    note.rank = stopped.rank();
    std::strncpy(note.text, stopped.reason().c_str(), sizeof note.text - 1);
  } catch (const std::exception& failure) {
    std::strncpy(note.text, failure.what(), sizeof note.text - 1);
  } catch (...) {
    std::strncpy(note.text, "it failed", sizeof note.text - 1);
  }
  return note;
}

void Notes::TellToStop(const std::exception_ptr& error) noexcept {
  constexpr std::chrono::milliseconds kLongEnough{500};
  try {
    const std::vector<EventPtr> under_way = TellAll(NoteOf(error));
    const auto end = std::chrono::steady_clock::now() + kLongEnough;
    const auto sent = [](const EventPtr& event) { return event->Happened(); };
    while (!std::all_of(under_way.begin(), under_way.end(), sent) &&
           std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  } catch (const std::exception&) {
    // Whoever cannot be reached sees that this process is gone.
  }
}

}  // namespace pipelag
