// The pipelag command: finds the subcommand, and is the one place that catches what goes wrong.
// Must not know what any subcommand does.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstdio>

#include "models/names.h"
#include "runtime/termination.h"
#include "tools/arguments.h"
#include "tools/failure.h"
#include "tools/subcommand.h"

namespace pipelag {
namespace {

std::vector<Subcommand> Subcommands() {
  return {
      SimulateCommand(),   //
      RunCommand(),        //
      CalibrateCommand(),  //
      CompareCommand(),    //
      AnalyzeCommand(),    //
      ScheduleCommand(),   //
      ConvergeCommand(),   //
      TimeToLossCommand(), ModelCommand(), ValidateCommand(),
      SweepCommand(),      PlanCommand(),  ListCommand(),
  };
}

std::string Overview(const std::vector<Subcommand>& subcommands) {
  std::string text =
      "usage: pipelag <subcommand> [flags]\n\n"
      "Simulates and runs pipeline-parallel training: which schedule, with which optimizer, "
      "reaches\n"
      "a target loss soonest, and why.\n\nSubcommands:\n";
  for (const Subcommand& subcommand : subcommands) {
    text += fmt::format("  {:<12} {}\n", subcommand.name, subcommand.summary);
  }
  return text +
         "\n'pipelag <subcommand> --help' lists its flags; 'pipelag --version' names the version.\n"
         "Exit codes: 0 done, 1 outside a tolerance, 2 bad input or environment, 3 a bug of "
         "ours.\n";
}

const Subcommand& Find(const std::vector<Subcommand>& subcommands, const std::string& name) {
  std::vector<std::string_view> known;
  for (const Subcommand& subcommand : subcommands) {
    if (subcommand.name == name) return subcommand;
    known.push_back(subcommand.name);
  }
  known.insert(known.end(), {"--help", "--version"});
  throw Error(
      fmt::format("'{}' is not a subcommand; the nearest is '{}'", name, Nearest(name, known)));
}

std::vector<std::string> JobKeys(const std::vector<Subcommand>& subcommands) {
  std::vector<std::string> keys;
  for (const Subcommand& subcommand : subcommands) {
    if (!subcommand.reads_job) continue;
    for (const Flag& flag : subcommand.flags) keys.push_back(flag.name);
  }
  return keys;
}

int Run(const std::vector<std::string>& words) {
  const std::vector<Subcommand> subcommands = Subcommands();
  if (words.empty()) {
    throw Error("a subcommand is missing; 'pipelag --help' lists them");
  }
  if (words[0] == "--help" || words[0] == "help") {
    fmt::print("{}", Overview(subcommands));
    return 0;
  }
  if (words[0] == "--version") {
    fmt::print("pipelag {}\n", PIPELAG_VERSION);
    return 0;
  }
  const Subcommand& subcommand = Find(subcommands, words[0]);
  const Arguments arguments =
      ParseArguments(subcommand, {words.begin() + 1, words.end()}, JobKeys(subcommands));
  if (arguments.Has("help")) {
    fmt::print("{}", HelpText(subcommand));
    return 0;
  }
  return subcommand.run(arguments);
}

int RunAndFlush(const std::vector<std::string>& words) {
  const int code = Run(words);
  if (std::fflush(stdout) != 0) throw Error("stdout: the result cannot be written");
  return code;
}

/// Data may lie in more files than a process may hold open at first.
void AllowManyFiles() {
  constexpr rlim_t kEnough = 65536;
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = std::max(files.rlim_cur, std::min(files.rlim_max, kEnough));
  setrlimit(RLIMIT_NOFILE, &files);
}

int Guarded(const std::vector<std::string>& words) {
  try {
    return RunAndFlush(words);
  } catch (...) {
    return ReportFailure(std::current_exception());
  }
}

}  // namespace
}  // namespace pipelag

int main(int argc, char** argv) {
  const pipelag::TerminationSignals signals;
  // A file beyond the limit of its size is a write that fails, as on a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  pipelag::AllowManyFiles();
  return pipelag::Guarded({argv + 1, argv + argc});
}
