#include "runtime/device/communicators.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>

#include "models/error.h"

namespace pipelag {
namespace {

/// Between two looks at all communicators: failures are rare, and ends of runs may take that long.
constexpr std::chrono::milliseconds kLook{10};
constexpr std::chrono::microseconds kNap{20};
/// Of a message that only tries out a connection.
constexpr size_t kTrialBytes = 256;

}  // namespace

ShareId ShareIdsAmongThreads(const RunControl& control) {
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<int, CollectiveLibrary::Id> ids;
  };
  const auto shared = std::make_shared<Shared>();
  return [shared, &control](int number, const std::vector<int>& ranks,
                            const std::function<CollectiveLibrary::Id()>& make) {
    std::unique_lock lock(shared->mutex);
    if (make) {
      shared->ids[number] = make();
      shared->changed.notify_all();
    }
    control.Wait(
        lock, shared->changed, [&] { return shared->ids.contains(number); },
        [&] { return fmt::format("communicator {} waits for rank {}", number, ranks.front()); });
    return shared->ids.at(number);
  };
}

Communicators::Communicators(CollectiveLibrary& library, DeviceClock& clock, RunControl& control,
                             int rank)
    : library_(library), clock_(clock), control_(control), rank_(rank) {}

Communicators::~Communicators() {
  watching_ = {};
  AbortAll();
}

void Communicators::Open(const std::vector<Member>& members, const ShareId& share) {
  clock_.device().MakeCurrent();
  for (const Member& member : members) {
    const std::vector<int>& ranks = member.ranks;
    const auto own = std::find(ranks.begin(), ranks.end(), rank_);
    CHECK(own != ranks.end());
    auto channel = std::make_unique<Channel>(TimedStream(clock_, true));
    channel->rank = static_cast<int>(own - ranks.begin());
    channel->size = static_cast<int>(ranks.size());
    channel->waiting = member.waiting;
    std::function<CollectiveLibrary::Id()> make;
    if (channel->rank == 0) make = [&] { return library_.NewId(); };
    const CollectiveLibrary::Id id =
        channel->size == 1 ? make() : share(member.number, ranks, make);
    channel->communicator = library_.Join(id, channel->size, channel->rank);
    Channel& joining = *channel;
    channels_[member.number] = std::move(channel);
    WaitUntilReady(joining);
  }
  const DeviceMemory bytes(clock_.device(), 2 * kTrialBytes);
  try {
    for (const auto& [number, channel] : channels_) TryOut(number, *channel, bytes);
  } catch (...) {
    AbortAll();  // giving the memory back waits for what is under way
    throw;
  }
  watching_ = std::jthread([this](const std::stop_token& stop) { Watch(stop); });
}

/// A ring, so that each rank has sent and received.
void Communicators::TryOut(int number, Channel& channel, const DeviceMemory& bytes) {
  const auto stretch = std::make_shared<Stretch>(channel.stream);
  const int size = channel.size;
  const Communicator::Half ring[] = {
      {true, (channel.rank + 1) % size, bytes.get(), kTrialBytes},
      {false, (channel.rank + size - 1) % size, bytes.get() + kTrialBytes, kTrialBytes}};
  Post(number, ring, channel.stream.get());
  stretch->End();
  DeviceEvent event(control_, channel.waiting);
  event.Issue(stretch, {});
  event.Wait();
}

bool Communicators::Ready(Channel& channel) {
  const std::lock_guard lock(channel.mutex);
  if (channel.ended) throw RunStopped();
  try {
    return channel.communicator->Ready();
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", channel.waiting, error.what()));
  }
}

void Communicators::WaitUntilReady(Channel& channel) {
  const Nanoseconds since = control_.Now();
  for (int look = 0; !Ready(channel); ++look) {
    control_.CheckRunning();
    control_.CheckDeadline(since, channel.waiting);
    if (look > 64) std::this_thread::sleep_for(kNap);
  }
}

void Communicators::Post(int number, std::span<const Communicator::Half> group, Stream stream) {
  Channel& channel = *channels_.at(number);
  {
    const std::lock_guard lock(channel.mutex);
    if (channel.ended) throw RunStopped();
    channel.communicator->Post(group, stream);
  }
  WaitUntilReady(channel);
}

void Communicators::Close() {
  watching_ = {};
  for (const auto& [number, channel] : channels_) {
    const std::lock_guard lock(channel->mutex);
    if (channel->ended) throw RunStopped();
    channel->communicator->Finish();
  }
  for (const auto& [number, channel] : channels_) WaitUntilReady(*channel);
  channels_.clear();
}

void Communicators::Watch(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    try {
      control_.CheckRunning();
      for (const auto& [number, channel] : channels_) Ready(*channel);
    } catch (const RunStopped&) {
      // Whatever is under way is waited for by streams, and those by whoever frees their memory.
      AbortAll();
      return;
    } catch (...) {
      control_.Stop(std::current_exception());
      AbortAll();
      return;
    }
    std::this_thread::sleep_for(kLook);
  }
}

/// All at once: one that is aborted may wait for work that stands behind another's.
void Communicators::AbortAll() noexcept {
  std::vector<std::jthread> aborting;
  for (const auto& [number, channel] : channels_) {
    const std::lock_guard lock(channel->mutex);
    if (channel->ended) continue;
    channel->ended = true;
    aborting.emplace_back([&ending = *channel->communicator] { ending.Abort(); });
  }
}

}  // namespace pipelag
