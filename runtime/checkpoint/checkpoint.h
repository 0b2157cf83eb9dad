// A checkpoint as a place to go on from, whatever number of stages wrote it. Knows no ranks,
// threads or schedules.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/checkpoint/safetensors.h"
#include "runtime/starting_point.h"

namespace pipelag {

class Checkpoint : public StartingPoint {
 public:
  /// A checkpoint's own folder, or one that holds several: then the latest that is complete. Checks
  /// every file against the manifest's size and SHA-256, and throws Error naming the file if it is
  /// missing, damaged or not known.
  explicit Checkpoint(const std::filesystem::path& path);
  ~Checkpoint() override;

  /// Its own folder.
  const std::filesystem::path& folder() const { return folder_; }

  /// Throws Error saying what differs if `facts` (facts.h, JSON text) are not those of the run that
  /// left it. Of another number of `replicas` it speaks where their micro-batches are not as many.
  void CheckFacts(const std::string& facts, int replicas) const;
  /// Whether that run added gradients in the order of `summation`.
  bool AddsLike(const std::string& summation) const;

  int64_t step() const override { return step_; }
  std::vector<double> LatestLosses() const override { return latest_losses_; }
  void ReadVersion(const StageLayout& layout, int64_t age, float* weights) const override;
  void ReadState(Optimizer& optimizer) const override;

 private:
  struct Manifest;

  void ReadFiles();
  void ReadLosses();
  /// The file that holds the tensor.
  const SafetensorsFile& Holding(const std::string& name) const;

  std::filesystem::path folder_;
  int64_t step_ = 0;
  std::vector<double> latest_losses_;
  std::unique_ptr<Manifest> manifest_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const SafetensorsFile*> held_;  ///< by tensor
};

}  // namespace pipelag
