// Many independent rows of results, computed on the threads of this process and its fellows that
// `mpirun` or `srun` started beside it, and kept in a file to go on from. Must not know what a row
// is about.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "models/units.h"
#include "tools/arguments.h"
#include "tools/result_rows.h"
#include "tools/subcommand.h"

namespace pipelag {

/// One of `size` processes with the same command line.
struct ProcessPlace {
  int rank = 0;
  int size = 1;
  std::string job;  ///< name of what started them, where it has one
};
/// By the variables of Open MPI (OMPI_COMM_WORLD_RANK and _SIZE), of PMI (PMI_RANK, PMI_SIZE:
/// MPICH, Intel MPI) or of srun (SLURM_PROCID and SLURM_STEP_NUM_TASKS, else SLURM_NTASKS within a
/// step: sbatch sets it too, and starts one process); one process without them.
/// Throws Error naming a variable that makes no sense.
ProcessPlace ProcessPlaceOf();

/// The last column of every table of shared work: what a row was computed from beside its flags.
inline constexpr const char* kInputsColumn = "inputs";

struct SharedWork {
  std::vector<Column> columns;          ///< the last is kInputsColumn
  size_t keys = 0;                      ///< the first columns, which tell what a row is about
  std::vector<Row> points;              ///< key cells, no two alike
  std::vector<std::string> inputs;      ///< per point
  std::function<Row(size_t)> evaluate;  ///< the other cells; called on several threads
  std::filesystem::path output;         ///< empty: nothing is kept
  bool resume = false;                  ///< rows of `output` are taken as they are
  int threads = 1;
  std::string noun;         ///< of the points, for the progress bar
  Nanoseconds deadline{0};  ///< longest wait for another process that writes nothing
};

/// --output, --resume, --jobs, --deadline.
std::vector<Flag> SharedWorkFlags(std::string_view noun);
/// Fills in what the flags say. Throws Error naming the flag.
void ReadSharedWork(const Arguments& arguments, SharedWork& work);

/// All rows in the order of the points, then those of a resumed file that no point asks for;
/// written to `output`. A row of a file that was computed from other inputs, or whose figures
/// cannot be, is an Error that names it. Every process computes each size-th point; the first one
/// waits for the others' rows in files beside `output`, named by a fingerprint of all points and
/// inputs, removes them, and gets the rows; to the others `rows` stays empty. If one writes nothing
/// for the deadline, the rows that are there are kept and the Error says how to go on. The result
/// is the same however many processes and threads there are.
std::vector<Row> RunSharedWork(const SharedWork& work, const ProcessPlace& place);

}  // namespace pipelag
