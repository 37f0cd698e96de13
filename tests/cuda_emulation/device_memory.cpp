#include "tests/cuda_emulation/device_memory.h"

#include <sys/mman.h>

#include <new>

#include "base/divide.h"

namespace bev::cuda_emulation {

namespace {
constexpr std::size_t kPage = 4096;
constexpr unsigned char kCanary = 0xa5;
}  // namespace

DeviceMemory::DeviceMemory(std::size_t bytes, std::size_t alignment) : bytes_(bytes) {
  const std::size_t room = round_up(bytes + alignment, kPage);
  page_bytes_ = room + 2 * kPage;
  pages_ = mmap(nullptr, page_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages_ == MAP_FAILED) throw std::bad_alloc();
  auto* first = static_cast<unsigned char*>(pages_);
  std::memset(first + kPage, kCanary, room);
  const std::size_t aligned = round_up(bytes, alignment);
  data_ = first + kPage + room - aligned;
  std::memset(data_, 0xff, bytes);
  mprotect(first, kPage, PROT_NONE);
  mprotect(first + kPage + room, kPage, PROT_NONE);
}

DeviceMemory::~DeviceMemory() { munmap(pages_, page_bytes_); }

bool DeviceMemory::intact() const {
  const unsigned char* first = static_cast<const unsigned char*>(pages_) + kPage;
  const unsigned char* end = first + page_bytes_ - 2 * kPage;
  const auto is_canary = [](unsigned char c) { return c == kCanary; };
  return std::all_of(first, static_cast<const unsigned char*>(data_), is_canary) &&
         std::all_of(static_cast<const unsigned char*>(data_) + bytes_, end, is_canary);
}

}  // namespace bev::cuda_emulation
