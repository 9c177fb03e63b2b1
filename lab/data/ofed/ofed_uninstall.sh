# Nowhere but on a node: apt-get would be that of another machine.
case "$0" in /usr/sbin/* | /sbin/*) ;; *) exit 1 ;; esac
echo 'This program will uninstall all OFED packages on your machine.'
if [ "$1" != --force ]; then
    printf "Do you want to continue?[y/N]:"; read -r answer
    case "$answer" in y | Y) ;; *) exit 1 ;; esac
fi
installed=$(dpkg-query --show --showformat '${Package}\n' NAMES 2>/dev/null)
apt-get purge --yes --allow-change-held-packages $installed
