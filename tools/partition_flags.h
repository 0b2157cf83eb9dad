// The flags that say how layers are shared out to stages, where the times of layers are known.
// Must not know what is done with the stages.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "models/partition.h"
#include "models/schedule/program.h"
#include "tools/arguments.h"
#include "tools/subcommand.h"

namespace pipelag {

/// --profile and --layer-times.
std::vector<Flag> PartitionFlags();

/// --split: even, auto or a list of counts.
enum class SplitKind { kEven, kAuto, kByHand };
SplitKind SplitKindOf(const Arguments& arguments);

/// Layers with their times, shared out.
struct Stages {
  std::vector<NetworkPart> parts;
  Partition partition;
  SplitKind kind = SplitKind::kEven;
  std::vector<int> counts;      ///< per stage, as --split would say it
  Costs costs;                  ///< times, messages of the largest cut; no links
  MemorySizes memory;           ///< without a device
  std::vector<Bytes> messages;  ///< behind each stage but the last

  bool sizes_known() const;  ///< whether the layers say anything of their memory
};

/// Whether the flags give times of layers.
bool HasLayers(const Arguments& arguments);

/// By --profile or --layer-times and --split, for the program's placement; with --split auto within
/// --device-memory. Nothing if neither is given. Throws Error naming the flag or the file.
std::optional<Stages> StagesOf(const Arguments& arguments, const Program& program);

/// By --machine and its model: blocks per stage, and what they come to by the model of costs; no
/// costs, sizes or parts. Nothing without --machine.
std::optional<Stages> ModelledStagesOf(const Arguments& arguments, const Program& program);

/// Any layers, by --split; auto within `memory` (0: no limit).
Stages SplitByFlags(const Arguments& arguments, std::vector<NetworkPart> parts,
                    const Program& program, Bandwidth bandwidth, Bytes memory);

/// A line for people: who has how many layers, and what the slowest rank takes.
std::string SplitText(const Stages& stages);
nlohmann::ordered_json SplitJson(const Stages& stages);

}  // namespace pipelag
