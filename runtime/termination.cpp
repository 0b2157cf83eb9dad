#include "runtime/termination.h"

#include <signal.h>

#include <cstring>
#include <mutex>
#include <utility>

#include "models/error.h"
#include "models/file.h"

namespace pipelag {
namespace {

constexpr int kSignals[] = {SIGTERM, SIGINT, SIGHUP};

int WakeUp() { return SIGRTMIN; }

/// Those that nobody has set to be ignored.
sigset_t ToBeAnswered() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : kSignals) {
    struct sigaction now {};
    CHECK(sigaction(signal, nullptr, &now) == 0);
    if (now.sa_handler == SIG_DFL) sigaddset(&signals, signal);
  }
  return signals;
}

struct Reactions {
  using List = std::list<OnTermination::Reaction>;

  std::mutex mutex;
  List always;
  List otherwise;

  List& Of(OnTermination::When when) {
    return when == OnTermination::When::kAlways ? always : otherwise;
  }
};

Reactions& OfThisProcess() {
  static Reactions reactions;
  return reactions;
}

void Answer(int signal) {
  Reactions& reactions = OfThisProcess();
  const std::lock_guard lock(reactions.mutex);
  const Reactions::List& called = reactions.always.empty() ? reactions.otherwise : reactions.always;
  for (const OnTermination::Reaction& react : called) {
    react(std::string("SIG") + sigabbrev_np(signal));
  }
  if (!called.empty()) return;
  RemoveUnfinishedFiles();
  sigset_t fatal;
  sigemptyset(&fatal);
  sigaddset(&fatal, signal);
  raise(signal);
  pthread_sigmask(SIG_UNBLOCK, &fatal, nullptr);
}

}  // namespace

TerminationSignals::TerminationSignals() {
  sigset_t awaited = ToBeAnswered();
  sigaddset(&awaited, WakeUp());
  CHECK(pthread_sigmask(SIG_BLOCK, &awaited, &before_) == 0);
  answering_ = std::jthread([awaited](const std::stop_token& over) {
    for (;;) {
      int signal = 0;
      CHECK(sigwait(&awaited, &signal) == 0);
      if (over.stop_requested()) return;
      if (signal != WakeUp()) Answer(signal);
    }
  });
}

TerminationSignals::~TerminationSignals() {
  answering_.request_stop();
  pthread_kill(answering_.native_handle(), WakeUp());
  answering_.join();
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

OnTermination::OnTermination(Reaction reaction, When when) : when_(when) {
  Reactions& reactions = OfThisProcess();
  const std::lock_guard lock(reactions.mutex);
  Reactions::List& list = reactions.Of(when_);
  place_ = list.insert(list.end(), std::move(reaction));
}

OnTermination::~OnTermination() {
  Reactions& reactions = OfThisProcess();
  const std::lock_guard lock(reactions.mutex);
  reactions.Of(when_).erase(place_);
}

}  // namespace pipelag
