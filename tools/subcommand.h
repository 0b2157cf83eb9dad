// What a subcommand is to main: its flags, its help and what it does. A new one is a file, a line
// here and a line in the table of main.cpp. Must not know how any of them works.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace pipelag {

class Arguments;

/// kRepeated: may be given several times, each with a value.
enum class FlagValue { kNone, kOptional, kRequired, kRepeated };

struct Flag {
  std::string name;   ///< full word, without dashes; also its key in a job file
  std::string value;  ///< what stands for the value in the help; empty for a switch
  std::string help;
  FlagValue takes = FlagValue::kRequired;
  char letter = 0;  ///< short form, 0 for none
};

struct Subcommand {
  std::string_view name;
  std::string_view operands;  ///< as in the usage line, "[JOB]"
  std::string_view summary;   ///< one line
  std::string_view details;   ///< paragraphs at the end of its help
  size_t fewest_operands = 0;
  size_t most_operands = 0;
  bool reads_job = false;  ///< its operand is a job file, whose keys are flags
  std::vector<Flag> flags;
  int (*run)(const Arguments&) = nullptr;  ///< returns the exit code
};

/// For `most_operands`.
inline constexpr size_t kAnyNumber = static_cast<size_t>(-1);

Subcommand SimulateCommand();
Subcommand RunCommand();
Subcommand ScheduleCommand();
Subcommand CalibrateCommand();
Subcommand CompareCommand();
Subcommand AnalyzeCommand();
Subcommand ConvergeCommand();
Subcommand TimeToLossCommand();
Subcommand ValidateCommand();
Subcommand ModelCommand();
Subcommand SweepCommand();
Subcommand PlanCommand();
Subcommand ListCommand();

}  // namespace pipelag
