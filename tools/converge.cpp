// `pipelag converge`: what gradient delay costs in loss, over a grid of optimizers, delay profiles,
// corrections, learning rates and seeds, trained on the serial reference.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "models/file.h"
#include "runtime/study.h"
#include "tools/flags.h"
#include "tools/progress.h"
#include "tools/table.h"
#include "tools/training_flags.h"
#include "traces/delay_study.h"

namespace pipelag {
namespace {

constexpr int64_t kDefaultSteps = 300;

std::vector<std::string> TextsOr(const Arguments& arguments, const std::string& name,
                                 std::vector<std::string> otherwise) {
  return arguments.Has(name) ? arguments.Texts(name) : std::move(otherwise);
}

/// Stages of profiles by hand: --ranks, or as many as the first list of delays has.
int StagesOf(const Arguments& arguments, const std::vector<std::string>& profiles) {
  if (arguments.Has("ranks")) return static_cast<int>(arguments.Count("ranks"));
  for (const std::string& text : profiles) {
    if (text.find('@') != std::string::npos) continue;
    const auto colons = std::count(text.begin(), text.end(), ':');
    if (colons > 0) return static_cast<int>(colons) + 1;
  }
  return 1;
}

std::vector<double> LearningRatesOf(const Arguments& arguments) {
  std::vector<double> rates;
  const std::string place = arguments.PlaceOf("learning-rate");
  for (const std::string& text : TextsOr(arguments, "learning-rate", {"0.002"})) {
    try {
      rates.push_back(ParseDecimal(text));
    } catch (const Error& error) {
      throw Error(fmt::format("{}: {}", place, error.what()));
    }
    if (!(rates.back() > 0) || rates.back() > 1e6) {
      throw Error(fmt::format("{}: '{}' is not a positive rate", place, text));
    }
  }
  return rates;
}

std::vector<uint64_t> SeedsOf(const Arguments& arguments) {
  if (!arguments.Has("seed")) return {1};
  const std::vector<int> seeds = arguments.SmallNumbers("seed");
  return {seeds.begin(), seeds.end()};
}

Study StudyOf(const Arguments& arguments) {
  const std::vector<std::string> profiles = TextsOr(arguments, "delay", {"0", "1"});
  const int64_t steps = arguments.CountOr("steps", kDefaultSteps);
  const ProfileSetting setting{
      .stages = StagesOf(arguments, profiles),
      .microbatches = static_cast<int>(arguments.CountOr("microbatches", 4)),
      .steps = steps,
      .synchronous_steps = arguments.NumberOr("synchronous-steps", 0),
      .tied = arguments.Has("tied")};
  Study study;
  study.common = CommonTrainingOf(arguments, setting.stages, steps);
  study.microbatches = setting.microbatches;
  study.optimizers = TextsOr(arguments, "optimizer", {"adamw", "muon"});
  for (const std::string& text : profiles) study.profiles.push_back(MakeProfile(text, setting));
  study.corrections = TextsOr(arguments, "correction", {"none", "error-feedback"});
  TrainingOptions named = study.common;
  for (const std::string& optimizer : study.optimizers) {
    named.optimizer.name = optimizer;
    CheckOptimizer(arguments, named);
  }
  named.optimizer.name = "adamw";  // which all of them go with
  for (const std::string& correction : study.corrections) {
    named.correction.name = correction;
    CheckOptimizer(arguments, named);
  }
  study.learning_rates = LearningRatesOf(arguments);
  study.seeds = SeedsOf(arguments);
  return study;
}

std::string SpreadText(const std::optional<Spread>& spread) {
  if (!spread) return "-";
  return fmt::format("{:.4f} ({:.4f} .. {:.4f})", spread->mean, spread->least, spread->greatest);
}

std::string GapText(const StudyRow& row) {
  if (!row.gap) return "-";
  if (row.runs == 1) return fmt::format("{:+.4f}", row.gap->mean);
  return fmt::format("{:+.4f} ± {:.4f}", row.gap->mean, row.gap->standard_error);
}

std::string ExtraText(const StudyRow& row) {
  if (!row.iso_loss) return "-";
  if (!row.iso_loss->reached) return "not reached";
  return fmt::format("{:+.0f} ({:+.1f} %)", row.iso_loss->extra_tokens,
                     100 * row.iso_loss->extra_share);
}

std::string Rows(const std::vector<StudyRow>& rows) {
  std::vector<std::vector<std::string>> table = {{"optimizer", "delay", "correction", "rate",
                                                  "train", "validation", "gap", "closed",
                                                  "extra tokens", "lag"}};
  for (const StudyRow& row : rows) {
    std::vector<std::string> cells = {row.mode.optimizer, row.mode.profile, row.mode.correction,
                                      fmt::format("{}", row.learning_rate)};
    if (row.diverged > 0) {
      cells.push_back(fmt::format("diverged ({} of {})", row.diverged, row.runs));
    } else {
      cells.insert(
          cells.end(),
          {SpreadText(row.train), SpreadText(row.validation), GapText(row),
           row.closed_share ? fmt::format("{:.0f} %", 100 * *row.closed_share) : "-",
           ExtraText(row), row.lag_share ? fmt::format("{:+.0f} %", 100 * *row.lag_share) : "-"});
    }
    table.push_back(std::move(cells));
  }
  return FormatTable(table);
}

std::string TextOf(const StudyTable& table, const Study& study, const Corpus& corpus) {
  const TrainingOptions& common = study.common;
  std::string text = fmt::format(
      "trained on {}: {} layers of {} channels, {} tokens a step, {} steps, {}\n\n", corpus.source,
      common.shape.layers, common.shape.hidden, TokensPerStep(common, study.microbatches),
      study.profiles.front().plan.steps, Counted(static_cast<int64_t>(study.seeds.size()), "seed"));
  text += "at the same learning rate:\n" + Rows(table.rows);
  text += "\neach at its own best learning rate:\n" + Rows(table.best);
  return text +
         fmt::format(
             "\nlosses in nats per {}, mean (least .. greatest) over seeds; train: mean of the "
             "last twentieth of the run\n",
             corpus.bytes ? "byte" : "token") +
         "gap: validation loss over synchronous (delay 0), ± standard error; closed: share of the "
         "gap without correction\n"
         "extra tokens: to the synchronous final train loss; lag: tokens to the own final train "
         "loss, over synchronous\n";
}

nlohmann::ordered_json JsonOf(const std::optional<Spread>& spread) {
  if (!spread) return nullptr;
  return {{"mean", spread->mean},
          {"min", spread->least},
          {"max", spread->greatest},
          {"standard_error", spread->standard_error}};
}

nlohmann::ordered_json JsonOf(const std::vector<StudyRow>& rows) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const StudyRow& row : rows) {
    nlohmann::ordered_json json = {{"optimizer", row.mode.optimizer},
                                   {"delay", row.mode.profile},
                                   {"correction", row.mode.correction},
                                   {"learning_rate", row.learning_rate},
                                   {"runs", row.runs},
                                   {"diverged", row.diverged},
                                   {"train_loss", JsonOf(row.train)},
                                   {"validation_loss", JsonOf(row.validation)},
                                   {"gap", JsonOf(row.gap)}};
    if (row.closed_share) json["closed_share"] = *row.closed_share;
    if (row.iso_loss) {
      json["iso_loss"] = {{"reached", row.iso_loss->reached}};
      if (row.iso_loss->reached) {
        json["iso_loss"]["extra_tokens"] = row.iso_loss->extra_tokens;
        json["iso_loss"]["extra_share"] = row.iso_loss->extra_share;
      }
    }
    if (row.lag_share) json["lag_share"] = *row.lag_share;
    all.push_back(std::move(json));
  }
  return all;
}

int Run(const Arguments& arguments) {
  const bool json = WantsJson(arguments);
  const std::filesystem::path folder = arguments.Text("output");
  const std::string curves_file = arguments.Output("curves");
  const std::string table_file = arguments.Output("table");
  const std::string plot_file = arguments.Output("plot");
  const int jobs = JobsOf(arguments);
  const Study study = StudyOf(arguments);
  const Corpus corpus = CorpusOf(arguments, study.common);
  const std::vector<StudyRun> runs = RunsOf(study, corpus);
  std::filesystem::create_directories(folder);
  CheckWritable(folder / runs.front().file_name);
  std::vector<LossCurve> curves;
  {
    Progress progress(runs.size(), "runs");
    curves = RunStudy(runs, corpus, folder, jobs, [&](size_t done, size_t found) {
      progress.Show(done, fmt::format("{} found done", found));
    });
  }
  const StudyTable table = TabulateStudy(curves);
  if (!curves_file.empty()) WriteFile(curves_file, CurvesCsv(curves));
  if (!table_file.empty()) WriteFile(table_file, StudyTableCsv(table));
  if (!plot_file.empty()) WriteFile(plot_file, StudyPlot(curves, table));
  if (json) {
    const nlohmann::ordered_json result = {{"rows", JsonOf(table.rows)},
                                           {"best", JsonOf(table.best)}};
    fmt::print("{}\n", result.dump(2));
  } else {
    fmt::print("{}", TextOf(table, study, corpus));
  }
  return 0;
}

}  // namespace

Subcommand ConvergeCommand() {
  return {
      .name = "converge",
      .operands = "",
      .summary = "measures what gradient delay costs in loss: optimizers, delays, corrections",
      .details =
          "Trains every point of the grid on the serial reference, one run per thread, all on the\n"
          "same data in the same order. A finished run is a file in --output; runs found there\n"
          "are not trained again, so that the same command goes on where it was stopped.\n\n"
          "Example: pipelag converge --optimizer adamw,muon --delay 0,1,pipedream@4x1\n"
          "         --learning-rate 0.002,0.008 --seed 1,2 --output study --curves curves.csv",
      .flags = Concatenate(
          {{{"output", "FOLDER", "keeps the finished runs, one JSON file each"},
            {"optimizer", "NAME[,NAME...]",
             fmt::format("{} (default: adamw,muon)", fmt::join(OptimizerNames(), ", "))},
            {"delay", "PROFILE[,PROFILE...]",
             "gradient delay in updates: one number, one per stage as in 3:2:1:0, or a schedule's "
             "as in pipedream@4x1 (ranks x micro-batches) (default: 0,1)"},
            {"correction", "NAME[,NAME...]",
             fmt::format("{} (default: none,error-feedback)", fmt::join(CorrectionNames(), ", "))},
            {"learning-rate", "RATE[,RATE...]", "peaks (default: 0.002)"},
            {"seed", "NUMBER[,NUMBER...]", "of weights and order of the data (default: 1)"},
            {"steps", "COUNT", fmt::format("updates (default: {})", kDefaultSteps)},
            {"microbatches", "COUNT", "micro-batches per update (default: 4)"},
            {"ranks", "COUNT",
             "stages that delays are given for (default: as many as the first list has)"},
            {"synchronous-steps", "COUNT", "updates without delay at the start (default: 0)"},
            {"clip-norm", "NORM", "clip gradients to this global norm"}},
           CommonTrainingFlags(),
           {JobsFlag("runs"),
            {"curves", "FILE", "write the loss of every step as CSV"},
            {"table", "FILE", "write the table as CSV"},
            {"plot", "FILE", "draw every mode's loss at its best learning rate as SVG"},
            FormatFlag()}}),
      .run = Run,
  };
}

}  // namespace pipelag
