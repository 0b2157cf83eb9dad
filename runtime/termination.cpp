#include "runtime/termination.h"

#include <semaphore.h>
#include <signal.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

#include "models/error.h"
#include "models/file.h"

namespace pipelag {
namespace {

constexpr int kSignals[] = {SIGTERM, SIGINT, SIGHUP};

/// All that a handler of signals may touch, and it has no other way to it.
struct Received {
  sem_t any;
  std::atomic<int> last{0};
};
Received received;

void Receive(int signal) {
  const int kept = errno;
  received.last = signal;
  sem_post(&received.any);
  errno = kept;
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
  ::signal(signal, SIG_DFL);
  raise(signal);
}

}  // namespace

TerminationSignals::TerminationSignals() {
  CHECK(sem_init(&received.any, 0, 0) == 0);
  answering_ = std::jthread([](const std::stop_token& over) {
    for (;;) {
      while (sem_wait(&received.any) != 0) CHECK(errno == EINTR);
      if (over.stop_requested()) return;
      Answer(received.last);
    }
  });
  struct sigaction receive {};
  receive.sa_handler = Receive;
  receive.sa_flags = SA_RESTART;
  for (const int signal : kSignals) {
    struct sigaction before {};
    CHECK(sigaction(signal, nullptr, &before) == 0);
    if (before.sa_handler == SIG_DFL) CHECK(sigaction(signal, &receive, nullptr) == 0);
  }
}

TerminationSignals::~TerminationSignals() {
  for (const int signal : kSignals) {
    struct sigaction now {};
    CHECK(sigaction(signal, nullptr, &now) == 0);
    if (now.sa_handler == Receive) ::signal(signal, SIG_DFL);
  }
  answering_.request_stop();
  sem_post(&received.any);
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
