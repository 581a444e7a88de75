/* bundle_python.c - bundles of Python packages, with a Python of their own where they want one.
 *
 *     lib/                what pip installed
 *     runtime/python3     starts it; a shell script
 *     runtime/bin, lib    the interpreter and its standard library, from this machine
 *     runtime/libs, ld.so every library it and the packages are linked with, and their loader
 *
 * With `runtime = true` nothing is asked of the image but the architecture and /bin/sh: not its
 * Python, not its libc. Checksums of packages go to pip, which then takes nothing that has none. */
#include "agent/bundle.h"

#include <stdio.h>

#include "base/file.h"
#include "base/mem.h"

static const char copy_runtime[] =
    "import os, re, shutil, subprocess, sys, sysconfig\n"
    "out, home = 'runtime', sys.argv[1]\n"
    "version = 'python%d.%d' % sys.version_info[:2]\n"
    "os.makedirs(out + '/bin'); os.makedirs(out + '/libs')\n"
    "program = os.path.realpath(getattr(sys, '_base_executable', '') or sys.executable)\n"
    "shutil.copy(program, out + '/bin/python3')\n"
    "unwanted = shutil.ignore_patterns('site-packages', 'dist-packages', 'test', 'tests', "
    "'idlelib', "
    "'ensurepip', '__pycache__', 'turtledemo', 'tkinter', 'lib2to3', 'config-*')\n"
    "shutil.copytree(sysconfig.get_paths()['stdlib'], out + '/lib/' + version, ignore=unwanted)\n"
    "linked = [out + '/bin/python3']\n"
    "for top in (out + '/lib', 'lib'):\n"
    "    for folder, _, names in os.walk(top):\n"
    "        linked += [os.path.join(folder, n) for n in names if re.search(r'\\.so(\\.|$)', n)]\n"
    "loader = None\n"
    "for path in linked:\n"
    "    said = subprocess.run(['ldd', path], capture_output=True, text=True).stdout\n"
    "    for name, found in re.findall(r'^\\s*(?:(\\S+) => )?(/\\S+) \\(0x', said, re.M):\n"
    "        if 'ld-linux' in found or 'ld-musl' in found:\n"
    "            loader = os.path.realpath(found)\n"
    "        elif not os.path.exists(out + '/libs/' + (name or os.path.basename(found))):\n"
    "            shutil.copy(found, out + '/libs/' + (name or os.path.basename(found)))\n"
    "if not loader: sys.exit('the loader of ' + program + ' was not found')\n"
    "shutil.copy(loader, out + '/ld.so')\n"
    "os.chmod(out + '/ld.so', 0o755)\n"
    "with open(out + '/python3', 'w') as script:\n"
    "    script.write('#!/bin/sh\\nexport PYTHONHOME=%s/runtime PYTHONDONTWRITEBYTECODE=1\\n'\n"
    "        'export PYTHONPATH=\"%s/lib${PYTHONPATH:+:$PYTHONPATH}\"\\n'\n"
    "        'exec %s/runtime/ld.so --library-path %s/runtime/libs %s/runtime/bin/python3 "
    "\"$@\"\\n'\n"
    "        % (home, home, home, home, home))\n"
    "os.chmod(out + '/python3', 0o755)\n";

/* "name==1.0" of a requirement: the name. */
static struct str name_of(const char *package)
{
    struct str name = str_of(package);
    for (size_t i = 0; i < name.size; i++)
        if (strchr("=<>!~[@ ;", name.data[i]))
            return str_upto(name, i);
    return name;
}

/* One line per package, with its checksum. */
static int write_requirements(const struct agent_bundle *bundle, const char *path, struct err *err)
{
    OWN(buf) struct buf text = {0};
    for (size_t i = 0; bundle->packages[i]; i++) {
        const char *checksum = NULL;
        for (size_t n = 0; n < bundle->integrity_count; n++)
            if (str_is(name_of(bundle->packages[i]), bundle->integrity[n].key))
                checksum = bundle->integrity[n].value;
        if (!checksum)
            return err_set(err, ERR_INPUT,
                           "[bundle.integrity] has no checksum for '%s'; with one all need theirs",
                           bundle->packages[i]);
        buf_format(&text, "%s --hash=%s\n", bundle->packages[i], checksum);
    }
    return file_write(path, buf_str(&text), 0644, false, err);
}

int bundle_make_pypi(struct build *build, struct err *err)
{
    const struct agent_bundle *bundle = &build->spec->bundle;
    const char *list = arena_format(&build->arena, "%s/requirements.txt", build->work);
    const char *const packages[] = {
        "python3", "-m",       "pip", "install", "--no-input", "--disable-pip-version-check",
        "--quiet", "--target", "lib", "--",      NULL};
    const char *const checked[] = {"python3",
                                   "-m",
                                   "pip",
                                   "install",
                                   "--no-input",
                                   "--disable-pip-version-check",
                                   "--quiet",
                                   "--require-hashes",
                                   "--only-binary",
                                   ":all:",
                                   "--target",
                                   "lib",
                                   "-r",
                                   list,
                                   NULL};
    int result;
    if (bundle->integrity_count)
        result = write_requirements(bundle, list, err) < 0 ? -1 : bundle_run(build, checked, err);
    else
        result = bundle_run_with_packages(build, packages, err);
    if (result < 0 || !bundle->runtime)
        return result;
    const char *home = arena_format(&build->arena, AGENT_BUNDLES_INSIDE "/%s", build->spec->name);
    const char *const copy[] = {"python3", "-c", copy_runtime, home, NULL};
    return bundle_run(build, copy, err);
}
