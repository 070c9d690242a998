#include "transport/ucx/read_only_registration.h"

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <dlfcn.h>

// As libibverbs declares them; its headers are not needed to build Sluice.
struct ibv_mr;
struct ibv_pd;

namespace {

// IBV_ACCESS_REMOTE_WRITE and IBV_ACCESS_REMOTE_ATOMIC, which are part of the kernel's interface.
constexpr unsigned kRemoteWrite = 1u << 1;
constexpr unsigned kRemoteAtomic = 1u << 3;

thread_local int scopes = 0;

unsigned allowed(unsigned access) { return scopes > 0 ? access & ~(kRemoteWrite | kRemoteAtomic) : access; }

// The function of that name in libibverbs, which UCX has loaded by the time it registers anything. Null: it has not.
template <class Function>
Function* in_libibverbs(const char* name) {
    void* library = ::dlopen("libibverbs.so.1", RTLD_NOLOAD | RTLD_LAZY);
    return library != nullptr ? reinterpret_cast<Function*>(::dlsym(library, name)) : nullptr;
}

}  // namespace

extern "C" {

ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, std::size_t length, std::uint64_t iova, unsigned access) {
    static auto* const real =
        in_libibverbs<ibv_mr*(ibv_pd*, void*, std::size_t, std::uint64_t, unsigned)>("ibv_reg_mr_iova2");
    if (real == nullptr) {
        errno = ENOSYS;
        return nullptr;
    }
    return real(pd, address, length, iova, allowed(access));
}

ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, std::uint64_t offset, std::size_t length, std::uint64_t iova, int fd,
                          int access) {
    static auto* const real =
        in_libibverbs<ibv_mr*(ibv_pd*, std::uint64_t, std::size_t, std::uint64_t, int, int)>("ibv_reg_dmabuf_mr");
    if (real == nullptr) {
        errno = ENOSYS;
        return nullptr;
    }
    return real(pd, offset, length, iova, fd, static_cast<int>(allowed(static_cast<unsigned>(access))));
}

}  // extern "C"

namespace sluice::transport {

ReadOnlyRegistration::ReadOnlyRegistration() { ++scopes; }
ReadOnlyRegistration::~ReadOnlyRegistration() { --scopes; }

}  // namespace sluice::transport
