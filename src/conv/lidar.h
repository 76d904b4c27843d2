// A synthetic spinning LiDAR in a street scene: for tests, benchmarks and examples that need scans. Torch-free.
#pragma once

#include <cstdint>
#include <vector>

#include <lacewing/executor.h>

namespace lacewing::conv {

enum class LidarClass : std::int64_t { ground, vehicle, pole, facade, vegetation };

struct LidarOptions {
  std::uint64_t seed = 0;
  std::int64_t beams = 64;
  std::int64_t azimuths = 2048;
  std::int64_t objects = 160;
  double range = 80.0;    ///< metres
  double noise = 0.02;    ///< metres, standard deviation along the ray
  double dropout = 0.08;  ///< share of the rays that return nothing
};

struct LidarScan {
  std::vector<float> points;          ///< (n, 4): x, y, z from the ground below the sensor, intensity in [0, 1]
  std::vector<std::int64_t> classes;  ///< (n,)
};

/// The same scan for the same options, whatever the threads.
LidarScan synthetic_scan(const LidarOptions& options, const CpuExecutor& executor);

}  // namespace lacewing::conv
