// Messages and sums between GPUs by NCCL: the ranks may be threads or processes, on one machine or
// many. Knows how a program numbers its lanes and groups, and NCCL by its seam only.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "models/schedule/program.h"
#include "runtime/device/communicators.h"
#include "runtime/device/device_stage.h"
#include "runtime/transport.h"

namespace pipelag {

/// One end: each lane that begins or ends here has a communicator of its two ranks and a stream,
/// each group one of its ranks. A half is enqueued when it is posted, so a receive is there before
/// its message; it holds a small part of the GPU while it waits, one per lane at most, since those
/// of a lane follow each other. Streams make halves of different lanes independent, which rests on
/// two things: no message needs more of the GPU than is left beside all lanes' (few blocks each),
/// and every stream has a queue of the GPU of its own (CUDA_DEVICE_MAX_CONNECTIONS). NCCL must not
/// be told to launch in the host's order (NCCL_LAUNCH_ORDER_IMPLICIT): a receive that waits for
/// another rank would then keep back the send that this rank waits for.
///
/// Sums are of the bits that Transport states, which NCCL's own are not for more than two ranks:
/// each rank gets its part of all summands, adds them in order and sends it to all.
class NcclTransport : public Transport {
 public:
  /// All is borrowed. `summand_bytes`: the most that a summand of each group has, on any rank.
  NcclTransport(const Program& program, int rank, CollectiveLibrary& library, Rendezvous others,
                std::vector<size_t> summand_bytes, DeviceClock& clock, RunControl& control);
  ~NcclTransport() override;

  /// Takes all device memory and streams that there will be: later they are not to be had without
  /// waiting for what runs, receives included.
  void Open() override;
  void Close() override;
  EventPtr Post(const Transfer& transfer, std::span<const EventPtr> after) override;
  /// Values of sums are device memory.
  EventPtr PostGradientSum(int group, const std::vector<GradientPart>& parts,
                           std::span<const EventPtr> after) override;
  EventPtr PostAllReduce(int group, std::span<double> values,
                         std::span<const EventPtr> after) override;

 private:
  /// A rank's summands, ascending by place, as the own rank sees them.
  template <class Value>
  struct SummandsOf {
    int rank = 0;
    std::vector<int> places;
    std::vector<Value*> own;             // on the rank that has them
    std::vector<double*> squared_norms;  // of the sum, for each of them; null: nobody asks
  };

  /// What sums of one group work with.
  struct GroupScratch {
    explicit GroupScratch(DeviceMemory of_group) : memory(std::move(of_group)) {}

    std::byte* nothing() const { return memory.get(); }  ///< where there are no values
    std::byte* norm() const { return memory.get() + DeviceStage::kAlignment; }
    std::byte* parts() const { return memory.get() + parts_at; }

    DeviceMemory memory;
    size_t parts_at = 0;
    size_t parts_bytes = 0;
    std::optional<TimedStream> alone;  // where all stages are here
  };

  int NumberOf(int group) const;
  std::vector<Communicators::Member> Members() const;
  void TakeScratch(int group);
  void Rehearse(const GroupScratch& scratch);
  template <class Value>
  EventPtr Sum(int group, std::vector<SummandsOf<Value>> members, size_t count, size_t together,
               std::span<const EventPtr> after);
  template <class Value>
  void Enqueue(int group, const TimedStream& stream, const std::vector<SummandsOf<Value>>& members,
               size_t count, size_t together);
  /// Everybody's summands of the own part, by place, those of others in scratch once the groups
  /// are done; `sum` is room for as many values.
  template <class Value>
  std::map<int, Value*> Collect(int group, const std::vector<SummandsOf<Value>>& members, size_t me,
                                size_t count, Value*& sum);

  const Program& program_;
  int rank_;
  DeviceClock& clock_;
  RunControl& control_;
  Rendezvous others_;
  std::vector<size_t> summand_bytes_;    // by group, as what follows
  std::map<int, GroupScratch> scratch_;  // of groups that this rank is a member of
  std::vector<int64_t> posted_;          // halves of each lane
  EventPtr last_;                        // the collective posted last
  /// Work may be at the scratch when the communicators have ended, whatever they ended of.
  struct Drain {
    NcclTransport& transport;
    ~Drain();
  };
  Drain drain_{*this};
  Communicators communicators_;  // last: ends before the memory goes
};

}  // namespace pipelag
