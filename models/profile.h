// Times and sizes per layer as somebody measured them, read from a file. Knows no stages.
#pragma once

#include <filesystem>
#include <vector>

#include "models/partition.h"

namespace pipelag {

/// A profile of PipeDream's profiler (graph.txt): lines "node4 -- ReLU() --
/// forward_compute_time=1.2, backward_compute_time=2.3, activation_size=100.0,
/// parameter_size=0.0" in milliseconds and bytes, of which activation_size may be a list
/// "[100.0; 20.0]" that is added up; and edges, lines "\tnode4 -- node5".
///
/// The graph is put in one order, in which every node stands behind all that it needs; of several
/// that could be next, the one with the least number, as they were executed. A cut is possible
/// between any two neighbours of that order: what passes is every activation made before it and
/// needed behind it, through all stages in between. Nodes called Input that need nothing count for
/// nothing, as with PipeDream's own optimizer: their time is the data loader's. A node keeps its
/// own output for the backward, gradients are as large as parameters, times are rounded to
/// nanoseconds.
///
/// Throws Error naming the file and the line.
std::vector<NetworkPart> ReadPipeDreamProfile(const std::filesystem::path& file);

/// A table with a header: "layer", "forward_ms", and "backward_ms" or both "backward_input_ms" and
/// "backward_weight_ms"; if known "activation_bytes" (kept of one micro-batch), "message_bytes",
/// "weight_bytes", "gradient_bytes" (default: as the weights) and "optimizer_bytes". A row per
/// layer, in order. Rows called "embedding" at the start and "head" at the end stay with the layer
/// beside them. Throws Error naming the file and the line.
std::vector<NetworkPart> ReadLayerTimes(const std::filesystem::path& file);

}  // namespace pipelag
