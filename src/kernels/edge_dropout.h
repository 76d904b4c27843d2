// Dropout whose random numbers are a function of seed, edge and head alone: the same on every device, for every order
// of work, forward and backward.
#pragma once

#include <cstdint>

#include <lacewing/dispatch/scalar.h>

namespace lacewing::kernels {

/// Four random numbers of 32 bits: Philox-4x32-10 (Salmon et al., SC 2011).
struct Philox {
  std::uint32_t word[4];

  LACEWING_HOST_DEVICE static Philox at(std::uint64_t key, std::uint64_t low, std::uint64_t high) {
    auto key0 = static_cast<std::uint32_t>(key);
    auto key1 = static_cast<std::uint32_t>(key >> 32);
    Philox c{{static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32), static_cast<std::uint32_t>(high),
              static_cast<std::uint32_t>(high >> 32)}};
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t a = std::uint64_t{0xD2511F53u} * c.word[0];
      const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * c.word[2];
      c = {{static_cast<std::uint32_t>(b >> 32) ^ c.word[1] ^ key0, static_cast<std::uint32_t>(b),
            static_cast<std::uint32_t>(a >> 32) ^ c.word[3] ^ key1, static_cast<std::uint32_t>(a)}};
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    return c;
  }
};

/// The random number of a head of an edge: heads come four to a block of Philox.
LACEWING_HOST_DEVICE inline std::uint32_t edge_random(std::uint64_t seed, std::int64_t edge, std::int64_t head) {
  const Philox numbers = Philox::at(seed, static_cast<std::uint64_t>(edge), static_cast<std::uint64_t>(head) / 4);
  const auto place = static_cast<unsigned>(head) % 4;
  return place == 0 ? numbers.word[0] : place == 1 ? numbers.word[1] : place == 2 ? numbers.word[2] : numbers.word[3];
}

}  // namespace lacewing::kernels
