// What torch's core asks of a CUDA device, answered without one: its guard, its streams and its hooks. A CPU build has none
// of them, and indexing and backward would end there. Nothing is ever computed here: kernels run on the host (device.py).
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

constexpr auto CUDA = c10::DeviceType::CUDA;
const c10::Device ONE(CUDA, 0);
const c10::Stream STREAM(c10::Stream::DEFAULT, ONE);

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return CUDA; }
  c10::Device exchangeDevice(c10::Device) const override { return ONE; }
  c10::Device getDevice() const override { return ONE; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return STREAM; }
  c10::Stream getDefaultStream(c10::Device) const override { return STREAM; }
  c10::Stream getNewStream(c10::Device, int) const override { return STREAM; }
  c10::Stream exchangeStream(c10::Stream) const override { return STREAM; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};

}  // namespace

namespace at {  // the registry wants the hooks here, under this name

struct CUDAHooks final : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  void init() const override {}
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
};

REGISTER_CUDA_HOOKS(CUDAHooks)
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

}  // namespace at
