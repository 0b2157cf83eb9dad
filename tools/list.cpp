// `pipelag list`: what is known by name. A new kind of name is one line in the table of kinds.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "models/architecture/config.h"
#include "models/hardware/machine.h"
#include "models/schedule/generators.h"
#include "runtime/correction/correction.h"
#include "runtime/device/backend.h"
#include "runtime/optimizer/optimizer.h"
#include "tools/arguments.h"
#include "tools/subcommand.h"

namespace pipelag {
namespace {

struct Entry {
  std::string name;
  std::string summary;
};

struct Kind {
  std::string_view name;
  std::vector<Entry> entries;
};

std::vector<Entry> Schedules() {
  std::vector<Entry> entries;
  for (const Generator& generator : Generators()) {
    entries.push_back({std::string(generator.name), std::string(generator.summary)});
  }
  return entries;
}

std::vector<Entry> Unexplained(const std::vector<std::string>& names) {
  std::vector<Entry> entries;
  for (const std::string& name : names) entries.push_back({name, ""});
  return entries;
}

std::vector<Entry> Models() {
  std::vector<Entry> entries;
  for (const TransformerPreset& preset : TransformerPresets()) {
    entries.push_back({std::string(preset.name), preset.source});
  }
  return entries;
}

std::vector<Entry> Architectures() {
  std::vector<Entry> entries;
  for (const std::string_view name : KnownArchitectures()) {
    entries.push_back({std::string(name), ""});
  }
  return entries;
}

std::vector<Entry> Machines() {
  std::vector<Entry> entries;
  for (const std::string& name : MachineNames())
    entries.push_back({name, ReadMachine(name).source});
  return entries;
}

std::vector<Kind> Kinds() {
  return {
      {"schedules", Schedules()},
      {"models", Models()},
      {"architectures", Architectures()},
      {"machines", Machines()},
      {"optimizers", Unexplained(OptimizerNames())},
      {"corrections", Unexplained(CorrectionNames())},
      {"backends",
       {{"threads", "a thread per rank, runs every schedule"},
        {"serial", "the reference in one thread, of every schedule"},
        {"mpi", "a process per rank"},
        {"cuda", "ranks on GPUs; here: " + DescribeCuda()}}},
      {"computes",
       {{"real", "stages of a network that trains"},
        {"emulated", "stages that only take their time, asleep"},
        {"busy", "the same, keeping a core busy"}}},
  };
}

int Run(const Arguments& arguments) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const Kind& kind : Kinds()) {
    std::string text = fmt::format("{}:\n", kind.name);
    for (const Entry& entry : kind.entries) {
      json[std::string(kind.name)].push_back({{"name", entry.name}, {"summary", entry.summary}});
      text += entry.summary.empty() ? fmt::format("  {}\n", entry.name)
                                    : fmt::format("  {:<16} {}\n", entry.name, entry.summary);
    }
    if (!WantsJson(arguments)) fmt::print("{}", text);
  }
  if (WantsJson(arguments)) fmt::print("{}\n", json.dump(2));
  return 0;
}

}  // namespace

Subcommand ListCommand() {
  return {
      .name = "list",
      .operands = "",
      .summary =
          "names the known schedules, models, machines, optimizers, corrections and backends",
      .details = "",
      .flags = {FormatFlag()},
      .run = Run,
  };
}

}  // namespace pipelag
