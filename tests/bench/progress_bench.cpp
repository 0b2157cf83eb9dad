// Figures to look at: what is left of a message, between two ranks over TCP, when both have
// computed for a while after it was sent. Once as runs do it, with a thread that looks after
// messages while the rank computes (process_link.h), once with progress at action boundaries alone.
// And what that thread costs the computation. usage: progress_bench [ROUNDS]
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "runtime/processes/process_link.h"
#include "runtime/processes/socket_wire.h"

namespace pipelag {
namespace {

using Clock = std::chrono::steady_clock;

double MicrosecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

/// Of the calling thread, or of all of the process.
double CpuMicroseconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return 1e6 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_nsec);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// A fixed amount of arithmetic that no memory is needed for.
class Work {
 public:
  /// About so long on a quiet core.
  explicit Work(std::chrono::microseconds length) {
    constexpr int64_t kProbe = 1 << 20;
    Do(kProbe);
    const auto start = Clock::now();
    Do(kProbe);
    count_ = static_cast<int64_t>(static_cast<double>(kProbe) *
                                  static_cast<double>(length.count()) / MicrosecondsSince(start));
  }
  void Do() const { Do(count_); }

 private:
  static void Do(int64_t count) {
    double value = 1;
    for (int64_t i = 0; i < count; ++i) value = value * 0.999999 + 1e-6;
    volatile double sink = value;
    static_cast<void>(sink);
  }
  int64_t count_ = 0;
};

struct Figures {
  double left_over = 0;      // after the computation, until the message was there
  double other_threads = 0;  // cores taken by others than the two that compute
};

/// One side of a message: starts it, and later waits for it.
struct Side {
  std::function<void()> start;
  std::function<void()> wait;
};

Figures Measure(Side sender, Side receiver, const Work* work, int rounds) {
  std::barrier together(2);
  std::vector<double> left_over;
  double of_sender = 0;
  const auto began = Clock::now();
  double all = -CpuMicroseconds(CLOCK_PROCESS_CPUTIME_ID);
  double own = -CpuMicroseconds(CLOCK_THREAD_CPUTIME_ID);
  std::jthread other([&] {
    for (int round = 0; round < rounds; ++round) {
      together.arrive_and_wait();
      sender.start();
      if (work != nullptr) work->Do();
      sender.wait();
    }
    of_sender = CpuMicroseconds(CLOCK_THREAD_CPUTIME_ID);
  });
  for (int round = 0; round < rounds; ++round) {
    together.arrive_and_wait();
    receiver.start();
    if (work != nullptr) work->Do();
    const auto ended = Clock::now();
    receiver.wait();
    left_over.push_back(MicrosecondsSince(ended));
  }
  other.join();
  own += CpuMicroseconds(CLOCK_THREAD_CPUTIME_ID);
  all += CpuMicroseconds(CLOCK_PROCESS_CPUTIME_ID);
  return {Median(left_over), (all - own - of_sender) / MicrosecondsSince(began)};
}

Side OverLink(ProcessLink& link, bool sends, std::vector<std::byte>& bytes, EventPtr& event) {
  return {[&link, sends, &bytes, &event] {
            event = sends ? link.Send(1 - link.rank(), 0, bytes, "the bench waits")
                          : link.Receive(1 - link.rank(), 0, bytes, "the bench waits");
          },
          [&event] { event->Wait(); }};
}

Side AtBoundaries(Wire& wire, bool sends, std::vector<std::byte>& bytes, Wire::Handle& handle) {
  return {[&wire, sends, &bytes, &handle] {
            handle = sends ? wire.Send(1 - wire.rank(), 0, bytes)
                           : wire.Receive(1 - wire.rank(), 0, bytes);
          },
          [&wire, &handle] {
            while (!wire.Done(handle)) std::this_thread::yield();
          }};
}

int Run(int rounds) {
  constexpr std::chrono::milliseconds kWork{10};
  constexpr std::chrono::seconds kPatience{10};
  const Socket reserved = Listen(0);
  const int port = PortOf(reserved) == 65535 ? 65534 : PortOf(reserved) + 1;
  std::unique_ptr<Wire> wires[2];
  {
    std::jthread second([&] { wires[1] = OpenSocketWire(1, 2, "localhost", port, kPatience); });
    wires[0] = OpenSocketWire(0, 2, "localhost", port, kPatience);
  }
  const Work work(kWork);
  fmt::print("{} rounds, both ranks compute {} ms behind a message; medians\n\n", rounds,
             kWork.count());
  fmt::print("{:>10} {:>12} {:>26} {:>26} {:>24}\n", "message", "alone", "left, with the thread",
             "left, at boundaries", "of a core, each thread");
  for (const size_t kib : {16u, 128u, 1024u, 8192u}) {
    std::vector<std::byte> bytes[2] = {std::vector<std::byte>(kib << 10),
                                       std::vector<std::byte>(kib << 10)};
    Wire::Handle handles[2] = {};
    const auto boundaries = [&](const Work* computed) {
      return Measure(AtBoundaries(*wires[0], true, bytes[0], handles[0]),
                     AtBoundaries(*wires[1], false, bytes[1], handles[1]), computed, rounds);
    };
    const Figures alone = boundaries(nullptr);
    const Figures at_boundaries = boundaries(&work);
    Figures with_thread;
    {
      RunControl controls[2] = {RunControl(std::chrono::minutes(1)),
                                RunControl(std::chrono::minutes(1))};
      EventPtr events[2];
      ProcessLink first(*wires[0], controls[0]);
      ProcessLink second(*wires[1], controls[1]);
      with_thread = Measure(OverLink(first, true, bytes[0], events[0]),
                            OverLink(second, false, bytes[1], events[1]), &work, rounds);
    }
    fmt::print("{:>6} KiB {:>9.0f} us {:>23.0f} us {:>23.0f} us {:>22.1f} %\n", kib,
               alone.left_over, with_thread.left_over, at_boundaries.left_over,
               100 * with_thread.other_threads / 2);
  }
  return 0;
}

}  // namespace
}  // namespace pipelag

int main(int count, char** words) {
  return pipelag::Run(count > 1 ? std::max(1, std::atoi(words[1])) : 41);
}
