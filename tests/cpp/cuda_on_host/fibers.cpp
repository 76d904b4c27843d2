#include <algorithm>
#include <bit>
#include <cstdlib>
#include <deque>
#include <stdexcept>
#include <ucontext.h>

#include "cuda_runtime.h"

namespace cuda_on_host {
namespace {

constexpr std::size_t kStackBytes = 64 << 10;
constexpr unsigned kWarp = 32;

/// Runs threads one after the other; a thread that waits keeps its fiber, and the next ones run on another.
struct Fiber {
  ucontext_t context{};
  std::vector<char> stack = std::vector<char>(kStackBytes);
  unsigned thread = 0;
  bool idle = true;
};

struct Running {
  std::deque<Fiber> fibers;
  ucontext_t scheduler{};
  Fiber* current = nullptr;
  unsigned threads = 0;
  unsigned next = 0;  ///< the first thread that has not begun
  bool failed = false;
  void (*body)(void*) = nullptr;
  void* context = nullptr;
  std::vector<char> done;
  // Barriers: who waits for which round.
  std::vector<std::uint64_t> block_round, warp_round;
  std::vector<std::uint64_t> put[2];  ///< of each lane, for even and odd rounds
  std::vector<char> voted[2];         ///< of each thread

  unsigned thread() const { return current->thread; }
};

Running* running = nullptr;

void start() {
  Fiber& fiber = *running->current;
  for (;;) {
    while (running->next < running->threads) {
      fiber.thread = running->next++;
      threadIdx = {fiber.thread, 0, 0};
      running->body(running->context);
      running->done[fiber.thread] = 1;
    }
    fiber.idle = true;
    swapcontext(&fiber.context, &running->scheduler);
  }
}

void yield() { swapcontext(&running->current->context, &running->scheduler); }

/// Whether all of some threads have come to a round. One that has ended never will.
bool all_at(const std::vector<std::uint64_t>& rounds, unsigned first, unsigned last, std::uint64_t round) {
  for (unsigned t = first; t < last; ++t) {
    if (rounds[t] < round) {
      running->failed = running->failed || running->done[t] != 0;
      return false;
    }
  }
  return true;
}

void wait(std::vector<std::uint64_t>& rounds, unsigned first, unsigned last) {
  const std::uint64_t round = ++rounds[running->thread()];
  while (!all_at(rounds, first, last, round)) {
    yield();
  }
}

void resume(Fiber& fiber) {
  running->current = &fiber;
  threadIdx = {fiber.thread, 0, 0};
  swapcontext(&running->scheduler, &fiber.context);
  if (running->failed) {
    running = nullptr;
    throw std::logic_error("a thread of the block ended before a barrier that others wait at");
  }
}

Fiber& idle_fiber(std::deque<Fiber>& fibers) {
  for (Fiber& fiber : fibers) {
    if (fiber.idle) {
      return fiber;
    }
  }
  Fiber& fiber = fibers.emplace_back();
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.data();
  fiber.context.uc_stack.ss_size = fiber.stack.size();
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, start, 0);
  return fiber;
}

void run_block(Running& block) {
  block.next = 0;
  block.done.assign(block.threads, 0);
  block.block_round.assign(block.threads, 0);
  block.warp_round.assign(block.threads, 0);
  block.put[0].assign(block.threads, 0);
  block.put[1].assign(block.threads, 0);
  block.voted[0].assign(block.threads, 0);
  block.voted[1].assign(block.threads, 0);
  while (block.next < block.threads) {
    Fiber& fiber = idle_fiber(block.fibers);
    fiber.idle = false;
    resume(fiber);
  }
  for (bool any = true; any;) {
    any = false;
    for (Fiber& fiber : block.fibers) {
      if (!fiber.idle) {
        any = true;
        resume(fiber);
      }
    }
  }
}

}  // namespace

void Block::wait_for_block() { wait(running->block_round, 0, running->threads); }

std::uint64_t Block::exchange(std::uint64_t bits, unsigned from, unsigned together) {
  const unsigned me = running->thread();
  const unsigned first = me / kWarp * kWarp + static_cast<unsigned>(std::countr_zero(together));
  auto& put = running->put[running->warp_round[me] % 2];
  put[me] = bits;
  wait(running->warp_round, first, first + static_cast<unsigned>(std::popcount(together)));
  return put[me / kWarp * kWarp + from];
}

unsigned Block::ballot(bool yes, unsigned together) {
  const unsigned me = running->thread();
  const auto& put = running->put[running->warp_round[me] % 2];
  exchange(yes ? 1 : 0, me % kWarp, together);
  unsigned votes = 0;
  for (unsigned left = together; left != 0; left &= left - 1) {
    const auto lane = static_cast<unsigned>(std::countr_zero(left));
    votes |= static_cast<unsigned>(put[me / kWarp * kWarp + lane]) << lane;
  }
  return votes;
}

bool Block::any_of_block(bool yes) {
  const unsigned me = running->thread();
  auto& voted = running->voted[running->block_round[me] % 2];
  voted[me] = yes ? 1 : 0;
  wait_for_block();
  return std::find(voted.begin(), voted.end(), 1) != voted.end();
}

void Block::run_blocks(unsigned blocks, unsigned threads, void (*body)(void*), void* context) {
  Running block;
  block.threads = threads;
  block.body = body;
  block.context = context;
  running = &block;
  blockDim = {threads, 1, 1};
  gridDim = {blocks, 1, 1};
  for (unsigned number = 0; number < blocks; ++number) {
    blockIdx = {number, 0, 0};
    run_block(block);
  }
  running = nullptr;
}

}  // namespace cuda_on_host
