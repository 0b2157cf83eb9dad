// `pipelag time-to-loss`: loss curves and step times, simulated or given, to seconds and GPU-hours
// until a loss, per schedule, optimizer and correction; and when late gradients are worth it.
#include "traces/time_to_loss.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "models/schedule/generators.h"
#include "runtime/delay_profile.h"
#include "sim/simulator.h"
#include "tools/flags.h"
#include "tools/table.h"
#include "traces/study_files.h"

namespace pipelag {
namespace {

std::vector<double> TargetsOf(const Arguments& arguments) {
  std::vector<double> targets;
  for (const std::string& text : arguments.Texts("target")) {
    try {
      targets.push_back(ParseDecimal(text));
    } catch (const Error& error) {
      throw Error(fmt::format("{}: {}", arguments.PlaceOf("target"), error.what()));
    }
  }
  return targets;
}

ScheduleTime Named(const Program& program, double seconds) {
  const Schedule& schedule = program.schedule();
  return {schedule.name, ProfileNamesOf(program), schedule.ranks, seconds};
}

/// NAME=TIME, each as a schedule of --ranks and --microbatches.
std::vector<ScheduleTime> GivenTimes(const Arguments& arguments) {
  std::vector<ScheduleTime> times;
  for (const std::string& text : arguments.Texts("step-time")) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos) {
      throw Error(fmt::format("{}: '{}' is not of the form SCHEDULE=TIME",
                              arguments.PlaceOf("step-time"), text));
    }
    const Nanoseconds time = ParseDuration(text.substr(equals + 1));
    if (time.count() == 0) {
      throw Error(fmt::format("{}: '{}' takes no time", arguments.PlaceOf("step-time"), text));
    }
    GeneratorOptions options;
    options.ranks = static_cast<int>(arguments.Count("ranks"));
    options.microbatches = static_cast<int>(arguments.Count("microbatches"));
    times.push_back(Named(Program(Generate(text.substr(0, equals), options), 1),
                          std::chrono::duration<double>(time).count()));
  }
  return times;
}

std::vector<ScheduleTime> SimulatedTimes(const Arguments& arguments) {
  std::vector<ScheduleTime> times;
  const std::vector<NamedSchedule> schedules = SchedulesOf(arguments);
  RefuseUselessOverlap(schedules, arguments);
  for (const NamedSchedule& named : schedules) {
    const Program program = Lower(named, arguments);
    const ActionTimes actions(program, CostsOf(arguments, program.schedule().stages),
                              ReductionOf(arguments));
    const Nanoseconds time = Simulate(program, actions, {}).metrics.step_time.RoundedUp();
    times.push_back(Named(program, std::chrono::duration<double>(time).count()));
  }
  return times;
}

std::string ProfileText(const ScheduleTime& schedule) { return schedule.profiles.front(); }

std::string Seconds(double seconds) {
  return FormatDuration(Nanoseconds(static_cast<int64_t>(seconds * 1e9)));
}

std::string SpreadSeconds(const Spread& spread) {
  return fmt::format("{} ({} .. {})", Seconds(spread.mean), Seconds(spread.least),
                     Seconds(spread.greatest));
}

std::string TimesText(const std::vector<TimeToLoss>& times) {
  std::vector<std::vector<std::string>> table = {{"schedule", "step", "delay", "optimizer",
                                                  "correction", "loss", "rate", "steps", "time",
                                                  "GPU-hours"}};
  for (const TimeToLoss& time : times) {
    std::vector<std::string> row = {time.schedule.name,   Seconds(time.schedule.step_seconds),
                                    time.mode.profile,    time.mode.optimizer,
                                    time.mode.correction, fmt::format("{}", time.target)};
    if (!time.steps) {
      row.emplace_back("not by every seed");
    } else {
      row.insert(row.end(), {fmt::format("{}", *time.learning_rate),
                             fmt::format("{:.1f}", time.steps->mean), SpreadSeconds(*time.seconds),
                             fmt::format("{:.4g} ({:.4g} .. {:.4g})", time.gpu_hours->mean,
                                         time.gpu_hours->least, time.gpu_hours->greatest)});
    }
    table.push_back(std::move(row));
  }
  return FormatTable(table);
}

std::string PayoffsText(const std::vector<Payoff>& payoffs) {
  std::vector<std::vector<std::string>> table = {{"schedule", "against", "optimizer", "correction",
                                                  "throughput", "lowest loss, sooner", "target",
                                                  "cancelled by"}};
  for (const Payoff& payoff : payoffs) {
    const std::string down_to = !payoff.pays_down_to
                                    ? "never"
                                    : fmt::format("{:.4f}{}", *payoff.pays_down_to,
                                                  payoff.always_pays ? " (the lowest)" : "");
    const std::string cancelled =
        !payoff.cancelling_loss
            ? "-"
            : fmt::format("{:+.1f} % steps, {:+.4f} loss", 100 * (payoff.throughput_gain - 1),
                          *payoff.cancelling_loss);
    table.push_back({payoff.schedule.name, payoff.against, payoff.mode.optimizer,
                     payoff.mode.correction, fmt::format("x{:.3f}", payoff.throughput_gain),
                     down_to, fmt::format("{}", payoff.target), cancelled});
  }
  return FormatTable(table);
}

nlohmann::ordered_json JsonOf(const std::optional<Spread>& spread) {
  if (!spread) return nullptr;
  return {{"mean", spread->mean}, {"min", spread->least}, {"max", spread->greatest}};
}

nlohmann::ordered_json ModeJson(const ScheduleTime& schedule, const CurveMode& mode,
                                double target) {
  return {{"schedule", schedule.name},   {"ranks", schedule.ranks},       {"delay", mode.profile},
          {"optimizer", mode.optimizer}, {"correction", mode.correction}, {"target", target}};
}

std::string JsonText(const std::vector<TimeToLoss>& times, const std::vector<Payoff>& payoffs) {
  nlohmann::ordered_json json = {{"times", nlohmann::ordered_json::array()},
                                 {"payoffs", nlohmann::ordered_json::array()}};
  for (const TimeToLoss& time : times) {
    nlohmann::ordered_json row = ModeJson(time.schedule, time.mode, time.target);
    row["step_time_s"] = time.schedule.step_seconds;
    row["reached"] = time.steps.has_value();
    if (time.learning_rate) row["learning_rate"] = *time.learning_rate;
    row["steps"] = JsonOf(time.steps);
    row["seconds"] = JsonOf(time.seconds);
    row["gpu_hours"] = JsonOf(time.gpu_hours);
    json["times"].push_back(std::move(row));
  }
  for (const Payoff& payoff : payoffs) {
    nlohmann::ordered_json row = ModeJson(payoff.schedule, payoff.mode, payoff.target);
    row["against"] = payoff.against;
    row["throughput_gain"] = payoff.throughput_gain;
    if (payoff.pays_down_to) row["pays_down_to_loss"] = *payoff.pays_down_to;
    row["always_pays"] = payoff.always_pays;
    if (payoff.cancelling_loss) row["cancelling_loss"] = *payoff.cancelling_loss;
    json["payoffs"].push_back(std::move(row));
  }
  return json.dump(2) + '\n';
}

int Run(const Arguments& arguments) {
  const bool json = WantsJson(arguments);
  const std::vector<double> targets = TargetsOf(arguments);
  if (arguments.Has("step-time") && arguments.Has("schedule")) {
    throw Error("--step-time brings its own schedules; leave out --schedule");
  }
  const std::vector<ScheduleTime> schedules =
      arguments.Has("step-time") ? GivenTimes(arguments) : SimulatedTimes(arguments);
  const std::vector<LossCurve> curves = ReadCurves(arguments.Text("curves"));
  const std::vector<TimeToLoss> times = TimesToLoss(curves, schedules, targets);
  for (const ScheduleTime& schedule : schedules) {
    const bool known = std::any_of(times.begin(), times.end(), [&](const TimeToLoss& time) {
      return time.schedule.name == schedule.name;
    });
    if (!known) {
      throw Error(fmt::format("{}: has no curves for {}, whose delay profile is {}",
                              arguments.Text("curves"), schedule.name, ProfileText(schedule)));
    }
  }
  const std::vector<Payoff> payoffs = Payoffs(curves, schedules, targets);
  if (json) {
    fmt::print("{}", JsonText(times, payoffs));
    return 0;
  }
  fmt::print("{}", TimesText(times));
  if (!payoffs.empty()) {
    fmt::print("\nlate gradients against the fastest synchronous schedule:\n{}",
               PayoffsText(payoffs));
  }
  fmt::print(
      "\nlosses are smoothed training losses; mean (least .. greatest) over seeds, at the learning "
      "rate that is first\n"
      "an update of a curve stands for one of the schedule, whatever the size of its batch\n");
  return 0;
}

}  // namespace

Subcommand TimeToLossCommand() {
  return {
      .name = "time-to-loss",
      .operands = "",
      .summary = "turns loss curves and step times into hours to a loss, per schedule",
      .details =
          "A schedule takes the curves of its own delay profile: 0 for one with a flush, 1 for\n"
          "2bw, that of every stage or NAME@RANKSxMICROBATCHES for others.\n\n"
          "Example: pipelag time-to-loss --curves curves.csv --target 2.5 --schedule 1f1b,2bw\n"
          "         --ranks 4 --microbatches 8 --forward 10ms --backward 20ms",
      .flags = Concatenate(
          {{{"curves", "PLACE", "a CSV of 'pipelag converge --curves', or its --output folder"},
            {"target", "LOSS[,LOSS...]", "training losses to be reached, nats per token"},
            {"step-time", "SCHEDULE=TIME[,...]",
             "measured step times, with --ranks and --microbatches, instead of simulated ones"}},
           ScheduleFlags(),
           {StepsFlag()},
           CostFlags(),
           {FormatFlag()}}),
      .run = Run,
  };
}

}  // namespace pipelag
