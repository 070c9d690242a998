#pragma once

#include <dlfcn.h>
#include <string>

namespace sluice {

/// A library looked up at run time, so that nothing of ours needs it to start. It stays loaded: drivers do not survive
/// being unloaded.
class SharedLibrary {
public:
    explicit SharedLibrary(const std::string& soname) : handle_(::dlopen(soname.c_str(), RTLD_NOW | RTLD_LOCAL)) {}

    [[nodiscard]] bool loaded() const { return handle_ != nullptr; }
    /// The function of that name, or null. `Function` is its type.
    template <class Function>
    [[nodiscard]] Function* find(const char* name) const {
        return reinterpret_cast<Function*>(::dlsym(handle_, name));
    }

private:
    void* handle_;
};

}  // namespace sluice
