// A self-signed certificate for localhost and 127.0.0.1, made anew for each test program.
#pragma once

#include <string>

namespace bev::test {

// The files go with it.
struct CertificateFiles {
  explicit CertificateFiles(const std::string& base)
      : certificate(base + ".crt"), key(base + ".key") {}
  CertificateFiles(const CertificateFiles&) = delete;
  CertificateFiles& operator=(const CertificateFiles&) = delete;
  ~CertificateFiles();

  std::string certificate, key;  // paths of PEM files
};
// `name` distinguishes the files, which are written below the folder for temporary ones.
CertificateFiles make_certificate(const std::string& name);

}  // namespace bev::test
