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
/// Groups of very many halves may be split differently on different ranks, and hang
/// (pytorch#174288): far fewer than the 256 that were seen to work.
constexpr size_t kMostInGroup = 128;

}  // namespace

Rendezvous AmongThreads(const RunControl& control, int ranks) {
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<int, CollectiveLibrary::Id> ids;
    int met = 0;
  };
  const auto shared = std::make_shared<Shared>();
  const auto share = [shared, &control](int number, const std::vector<int>& of,
                                        const std::function<CollectiveLibrary::Id()>& make) {
    std::unique_lock lock(shared->mutex);
    if (make) {
      shared->ids[number] = make();
      shared->changed.notify_all();
    }
    control.Wait(
        lock, shared->changed, [&] { return shared->ids.contains(number); },
        [&] { return fmt::format("communicator {} waits for rank {}", number, of.front()); });
    return shared->ids.at(number);
  };
  const auto meet = [shared, &control, ranks](int rank) {
    std::unique_lock lock(shared->mutex);
    ++shared->met;
    shared->changed.notify_all();
    control.Wait(
        lock, shared->changed, [&] { return shared->met == ranks; },
        [&] {
          return fmt::format("rank {} waits for {} of {} ranks to be connected", rank,
                             ranks - shared->met, ranks);
        });
  };
  return {share, meet};
}

Communicators::Communicators(CollectiveLibrary& library, DeviceClock& clock, RunControl& control,
                             int rank)
    : library_(library), clock_(clock), control_(control), rank_(rank) {}

Communicators::~Communicators() {
  watching_ = {};
  AbortAll();
}

void Communicators::Open(const std::vector<Member>& members, const Rendezvous& others) {
  clock_.device().MakeCurrent();
  size_t most = 1;
  for (const Member& member : members) {
    most = std::max(most, member.ranks.size());
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
        channel->size == 1 ? make() : others.share(member.number, ranks, make);
    channel->communicator = library_.Join(id, channel->size, channel->rank);
    Channel& joining = *channel;
    channels_[member.number] = std::move(channel);
    WaitUntilReady(joining);
  }
  {
    const DeviceMemory bytes(clock_.device(), (most + 1) * kTrialBytes);
    try {
      for (const auto& [number, channel] : channels_) TryOut(number, *channel, bytes);
    } catch (...) {
      AbortAll();  // giving the memory back waits for what is under way
      throw;
    }
  }
  watching_ = std::jthread([this](const std::stop_token& stop) { Watch(stop); });
  if (others.meet) others.meet(rank_);
}

/// Each rank sends to every other and receives from it; one that is alone, to itself.
void Communicators::TryOut(int number, Channel& channel, const DeviceMemory& bytes) {
  const auto stretch = std::make_shared<Stretch>(channel.stream);
  const auto size = static_cast<size_t>(channel.size);
  std::vector<std::vector<Communicator::Half>> exchange(std::max<size_t>(size, 2));
  const auto me = static_cast<size_t>(channel.rank);
  for (size_t distance = 1; distance < exchange.size(); ++distance) {
    const auto to = static_cast<int>((me + distance) % size);
    const auto from = static_cast<int>((me + size - distance % size) % size);
    exchange[distance] = {{true, to, bytes.get(), kTrialBytes},
                          {false, from, bytes.get() + distance * kTrialBytes, kTrialBytes}};
  }
  PostByDistance(number, exchange, 2);
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

void Communicators::PostByDistance(int number,
                                   const std::vector<std::vector<Communicator::Half>>& by_distance,
                                   size_t most) {
  std::vector<Communicator::Half> group;
  const auto post = [&] {
    std::erase_if(group, [](const Communicator::Half& half) { return half.bytes == 0; });
    if (!group.empty()) Post(number, group, stream(number).get());
    group.clear();
  };
  // Whoever is as far apart posts in the same round.
  const size_t at_once = std::max<size_t>(kMostInGroup / most, 1);
  for (size_t distance = 1; distance < by_distance.size(); ++distance) {
    group.insert(group.end(), by_distance[distance].begin(), by_distance[distance].end());
    if (distance % at_once == 0) post();
  }
  post();
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
