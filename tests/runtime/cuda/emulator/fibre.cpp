#include "tests/runtime/cuda/emulator/fibre.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "models/error.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif
#ifndef __x86_64__
#include <ucontext.h>
#endif

#ifdef __x86_64__
// ucontext asks the kernel for the signal mask at every switch, which takes longer than most of
// what happens between two. Saves what the System V ABI has a function keep, and swaps stacks.
extern "C" void pipelag_switch_stack(void** save, void* load);
asm(R"(
.text
.p2align 4
.type pipelag_switch_stack, @function
pipelag_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size pipelag_switch_stack, .-pipelag_switch_stack
)");
#endif

namespace pipelag::cuda::emulator {
namespace {

constexpr size_t kGuard = 4096;
constexpr size_t kStack = 256 * 1024;

thread_local Fibre* entering = nullptr;

}  // namespace

/// What the sanitizers want to know about stacks.
struct Fibre::Sanitizers {
  void* fake_stack = nullptr;
  void* caller_fake_stack = nullptr;
  const void* caller_bottom = nullptr;
  size_t caller_size = 0;
  void* fibre = nullptr;
  void* caller = nullptr;
#ifndef __x86_64__
  ucontext_t own_context;
  ucontext_t caller_context;
#endif
};

Fibre::Fibre()
    : memory_(static_cast<std::byte*>(mmap(nullptr, kGuard + kStack, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))),
      sanitizers_(new Sanitizers) {
  CHECK(memory_ != MAP_FAILED);
  CHECK(mprotect(memory_, kGuard, PROT_NONE) == 0);
#ifdef __SANITIZE_THREAD__
  sanitizers_->fibre = __tsan_create_fiber(0);
#endif
}

Fibre::~Fibre() {
#ifdef __SANITIZE_THREAD__
  __tsan_destroy_fiber(sanitizers_->fibre);
#endif
  munmap(memory_, kGuard + kStack);
  delete sanitizers_;
}

void Fibre::Start(void (*body)(void*), void* argument) {
  body_ = body;
  argument_ = argument;
  ended_ = false;
  error_ = nullptr;
  std::byte* bottom = memory_ + kGuard;
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(bottom, kStack);
#endif
#ifdef __x86_64__
  // Six registers, where to go, and as at every function's entry a place to return to.
  auto* top = reinterpret_cast<void**>(bottom + kStack);
  top[-1] = nullptr;
  top[-2] = reinterpret_cast<void*>(&Fibre::Enter);
  std::memset(top - 8, 0, 6 * sizeof(void*));
  own_ = top - 8;
#else
  getcontext(&sanitizers_->own_context);
  sanitizers_->own_context.uc_stack.ss_sp = bottom;
  sanitizers_->own_context.uc_stack.ss_size = kStack;
  sanitizers_->own_context.uc_link = nullptr;
  makecontext(&sanitizers_->own_context, &Fibre::Enter, 0);
#endif
}

void Fibre::Enter() {
  Fibre& self = *entering;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(nullptr, &self.sanitizers_->caller_bottom,
                                  &self.sanitizers_->caller_size);
#endif
  try {
    self.body_(self.argument_);
  } catch (...) {
    self.error_ = std::current_exception();
  }
  self.ended_ = true;
  self.SwitchBack();
}

void Fibre::SwitchTo() {
  entering = this;
#ifdef __SANITIZE_THREAD__
  sanitizers_->caller = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(sanitizers_->fibre, 0);
#endif
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&sanitizers_->caller_fake_stack, memory_ + kGuard, kStack);
#endif
#ifdef __x86_64__
  pipelag_switch_stack(&caller_, own_);
#else
  swapcontext(&sanitizers_->caller_context, &sanitizers_->own_context);
#endif
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(sanitizers_->caller_fake_stack, nullptr, nullptr);
#endif
}

void Fibre::SwitchBack() {
#ifdef __SANITIZE_THREAD__
  __tsan_switch_to_fiber(sanitizers_->caller, 0);
#endif
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(ended_ ? nullptr : &sanitizers_->fake_stack,
                                 sanitizers_->caller_bottom, sanitizers_->caller_size);
#endif
#ifdef __x86_64__
  pipelag_switch_stack(&own_, caller_);
#else
  swapcontext(&sanitizers_->own_context, &sanitizers_->caller_context);
#endif
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(sanitizers_->fake_stack, &sanitizers_->caller_bottom,
                                  &sanitizers_->caller_size);
#endif
}

void Fibre::Resume() {
  CHECK(!ended_);
  SwitchTo();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Fibre::Suspend() { SwitchBack(); }

}  // namespace pipelag::cuda::emulator
